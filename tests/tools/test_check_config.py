"""`odradek check-config`: its lines and exit codes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import check_config


def test_lists_every_key_and_exits_1_when_one_stops_the_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "server.properties"
    path.write_text(
        "broker.id=0\nlog.dir=/data\ncreate.topic.policy.class.name=a.B\nlod.dirs=/data\nnum.network.threads=3\n"
    )
    assert check_config.main([str(path), "--override", "num.partitions=0"]) == 1
    lines = capsys.readouterr().out.splitlines()
    verdicts = [line[:14].strip() for line in lines[:6]]
    assert verdicts == ["supported", "supported", "without effect", "unknown", "refused", "bad"]
    assert lines[3].endswith("did you mean log.dirs?")
    assert lines[-1] == "6 keys: 2 supported, 1 without effect, 1 unknown, 1 refused, 1 bad."


def test_exits_0_for_a_file_that_starts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "server.properties"
    path.write_text("broker.id=0\nno.such=1\n")
    assert check_config.main([str(path)]) == 0
    assert capsys.readouterr().out.endswith("2 keys: 1 supported, 1 unknown.\n")


def test_a_file_that_cannot_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "missing"
    assert check_config.main([str(path)]) == 1
    assert str(path) in capsys.readouterr().err
