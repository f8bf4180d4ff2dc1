"""One minute of scripts/soak (which runs half an hour): in plain text, and with --secured --hostile."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.soak.run import run_soak
from tests.kit.due import ONE_IN, due

pytestmark = [pytest.mark.slow, pytest.mark.java, pytest.mark.timeout(600)]


LONGEST_WAIT_S = 20.0
"""The limit for a small client next to the hostile one. Other tests share the machine, so it detects a hang, not a
delay.
"""


CLUSTERS = (pytest.param(False, id="plain"), pytest.param(True, id="secured and hostile"))


@pytest.mark.parametrize("guarded", due(CLUSTERS, min(len(CLUSTERS), ONE_IN)))
def test_faults_of_all_kinds_cost_nothing_that_was_acknowledged(guarded: bool, tmp_path: Path) -> None:
    soak = run_soak(
        tmp_path, minutes=1, seed=1, say=print, secured=guarded, hostile=guarded, longest_wait_s=LONGEST_WAIT_S
    )
    assert not soak.violations, soak
    assert not guarded or soak.security_changes.total() >= 5
    assert not guarded or soak.floods.total() >= 5
    assert soak.fault_count >= 10
    assert soak.verdict.acknowledged >= 10_000
