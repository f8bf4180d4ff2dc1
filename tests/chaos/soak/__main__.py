"""The command behind scripts/soak: brokers and ZooKeeper as processes under faults, and what became of the load."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.chaos.soak.run import run_soak
from tools.support.terminal import Progress


def main() -> int:
    """Run; the exit code is 1 when an acknowledged record is missing, or the cluster did not heal."""
    parser = argparse.ArgumentParser(prog="scripts/soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0, help="how long faults happen")
    parser.add_argument("--seed", type=int, default=1, help="of the faults")
    parser.add_argument(
        "--secured", action="store_true", help="SASL_SSL; certificates, ACLs and quotas change under load"
    )
    parser.add_argument(
        "--hostile", action="store_true", help="a client floods the brokers; no probe may wait a second"
    )
    arguments = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="odradek-soak-"))
    began_s = time.monotonic()

    progress = Progress("Soaking", "minutes", arguments.minutes)

    def say(what: str) -> None:
        elapsed_s = time.monotonic() - began_s
        print(f"{elapsed_s:8.1f} s  {what}", flush=True)
        progress.advance(elapsed_s / 60 - progress.done)

    say(f"seed {arguments.seed}, {arguments.minutes} minutes in {directory}")
    with progress:
        soak = run_soak(
            directory,
            minutes=arguments.minutes,
            seed=arguments.seed,
            say=say,
            secured=arguments.secured,
            hostile=arguments.hostile,
        )
        say(f"seed {arguments.seed}: {soak}")
    for violation in soak.violations:
        print(f"VIOLATION {violation}")
    if soak.violations:
        print(f"data and logs are kept in {directory}")
        return 1
    shutil.rmtree(directory)
    return 0


if __name__ == "__main__":
    sys.exit(main())
