"""The ledger of seeds, and the list of found planted bugs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulation.cluster import found, ledger
from tests.simulation.cluster.cluster_mutants import CLUSTER_MUTANTS
from tests.simulation.cluster.found import Found, add_found, read_found


def test_runs_are_added_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "LEDGER", tmp_path / "LEDGER")
    monkeypatch.setattr(ledger, "_git", lambda *arguments: "abc" if "rev-parse" in arguments else "")
    ledger.add(1, 200, 190, 0)
    ledger.add(201, 100, 99, 2)
    assert [(each.commit, *each[2:]) for each in ledger.entries()] == [
        ("abc", 1, 200, 190, 0),
        ("abc", 201, 100, 99, 2),
    ]


def test_files_that_are_not_of_the_commit_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "LEDGER", tmp_path / "LEDGER")
    monkeypatch.setattr(ledger, "_git", lambda *_arguments: "abc")
    ledger.add(1, 1, 1, 0)
    assert [each.commit for each in ledger.entries()] == ["abc+"]


def test_kept_runs_can_be_read() -> None:
    for entry in ledger.entries():
        assert entry.counting <= entry.seeds


def test_what_was_found_is_read_as_it_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(found, "FOUND", tmp_path / "FOUND")
    add_found(Found("some-bug", 30, 3, "TypeOk"))
    add_found(other := Found("other-bug", 1, 1, "C1"))
    add_found(result := Found("some-bug", 12, 7, "StrongIsr"))
    assert read_found() == {"some-bug": result, "other-bug": other}


def test_only_planted_bugs_were_found() -> None:
    assert [name for name in read_found() if name not in CLUSTER_MUTANTS] == []
