"""A short run of each target, and tests that the runner notices what it should."""

from __future__ import annotations

import random
import signal
import time
from typing import Any

import pytest

from tests.fuzz import runner
from tests.fuzz.runner import FuzzFailure, Tally, TooSlow, limited, run, run_batch
from tests.fuzz.targets.all_targets import TARGETS, shares
from tests.fuzz.targets.passwords import RIGHT_PLAIN

SEED = 20_261_125
SLOW = {"tls", "gssapi", "oauthbearer", "scram-servers", "token-requests", "sasl-sessions"}
"""Targets whose inputs take longer than 50 us."""


def run_one(name: str, inputs: int, seed: int) -> Tally:
    with TARGETS[name].opened() as trial:
        return run({name: (trial, inputs)}, seed, lambda _: None)[name]


@pytest.mark.parametrize("name", TARGETS)
def test_inputs_are_accepted_or_refused(name: str) -> None:
    tally = run_one(name, 500 if name in SLOW else 3000, SEED)
    refused = tally.inputs - tally.accepted
    assert min(tally.accepted, refused) >= tally.inputs // 100, "too one-sided to say much"


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", TARGETS)
def test_many_inputs_are_accepted_or_refused(name: str) -> None:
    run_one(name, 3000 if name in SLOW else 30_000, SEED + 1)


def test_a_run_has_as_many_inputs_as_said() -> None:
    for inputs in (10_000, 1_000_000, 20_000_000):
        assert sum(shares(inputs, list(TARGETS)).values()) == inputs


class Scripted:
    """A trial whose inputs are numbers."""

    def __init__(self, check: Any) -> None:
        self.check = check

    def make(self, draw: random.Random) -> int:
        return draw.randrange(100)


def fails_with(check: Any) -> FuzzFailure:
    with limited(), pytest.raises(FuzzFailure) as caught:
        run_batch("scripted", Scripted(check), 7, 3)
    return caught.value


def test_whatever_is_raised_is_a_failure_that_names_the_input() -> None:
    def check(case: int) -> bool:
        return bool(1 // (case != 42))

    error = fails_with(check)
    assert str(error).startswith("--target scripted --seed 7 --batch 3, input ")
    assert str(error).endswith("\n42")
    again = fails_with(check)
    assert str(again) == str(error)


def test_an_input_that_takes_too_long_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "MOST_S", 0.05)
    handler = signal.getsignal(signal.SIGVTALRM)
    ends_s = time.monotonic() + 30

    def check(_: int) -> bool:
        while time.monotonic() < ends_s:
            try:
                sum(range(1000))
            except Exception:  # noqa: BLE001  a parser that swallows everything
                return False
        return True

    assert isinstance(fails_with(check).__cause__, TooSlow)
    assert signal.getsignal(signal.SIGVTALRM) is handler


def test_an_input_that_needs_too_much_memory_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "MOST_BYTES", 64 << 20)
    assert isinstance(fails_with(lambda _: bool(bytes(1 << 30))).__cause__, MemoryError)


def test_a_wrong_token_that_is_accepted_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(RIGHT_PLAIN, b"\0alice\0secret")
    with pytest.raises(FuzzFailure, match="KeyError"):
        run_one("plain", 3000, SEED)
