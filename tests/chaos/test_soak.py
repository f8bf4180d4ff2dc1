"""A minute of what scripts/soak does for half an hour, with and without --secured."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.soak.run import run_soak

pytestmark = [pytest.mark.slow, pytest.mark.java, pytest.mark.timeout(600)]


@pytest.mark.parametrize("secured", [False, True], ids=["plain", "secured"])
def test_faults_of_all_kinds_cost_nothing_that_was_acknowledged(secured: bool, tmp_path: Path) -> None:
    soak = run_soak(tmp_path, minutes=1, seed=1, say=print, secured=secured)
    assert not soak.violations, soak
    assert not secured or soak.security_changes.total() >= 5
    assert soak.fault_count >= 10
    assert soak.verdict.acknowledged >= 10_000
