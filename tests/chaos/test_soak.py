"""A minute of what scripts/soak does for half an hour."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.soak.run import run_soak

pytestmark = [pytest.mark.slow, pytest.mark.java, pytest.mark.timeout(600)]


def test_faults_of_all_kinds_cost_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    soak = run_soak(tmp_path, minutes=1, seed=1, say=print)
    assert not soak.violations, soak
    assert soak.fault_count >= 10
    assert soak.verdict.acknowledged >= 10_000
