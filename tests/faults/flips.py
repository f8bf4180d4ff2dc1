"""Flips every byte of every kind of file once; tests/storage/recovery/test_corruption.py defines the allowed
effects.
"""

from __future__ import annotations

import contextlib
import io

from tests.faults.tally import Tally, describe
from tests.storage.recovery import test_corruption


def all_flips() -> list[tuple[str, bool]]:
    """Kinds of files, each after a clean shutdown (True) and after a crash; the long ones first."""
    return [(kind, clean) for kind in test_corruption.KINDS for clean in (True, False)]


def flip(part: tuple[str, bool]) -> Tally:
    """Flip every byte of the files of one kind."""
    kind, clean = part
    tally = Tally()
    name = f"{kind}, {'orderly stop' if clean else 'no orderly stop'}"
    outcome = test_corruption.outcome

    def counted(*arguments: object) -> str:
        tally.cases[kind] += 1
        return outcome(*arguments)  # type: ignore[arg-type]

    test_corruption.outcome = counted
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            test_corruption.test_every_byte_flipped(kind, clean)
    except Exception as error:  # noqa: BLE001 whatever it is, storage should not have raised it
        tally.violations[f"{name}, byte {tally.cases[kind]}"] = describe(error)
    finally:
        test_corruption.outcome = outcome
    return tally
