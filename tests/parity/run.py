"""Play scenarios by hand: `python -m tests.parity.run HOST:PORT [HOST:PORT] [PATTERN]`.

With one address it prints the transcripts; with two (Kafka first) their differences.
"""

from __future__ import annotations

import fnmatch
import json
import os
import sys
import time

from tests.parity.subject import Target, play, scenarios
from tests.parity.transcript import differences

WIDTH = 300
"""The limit of printed characters of a value."""


def main(arguments: list[str]) -> None:
    """See the module."""
    targets = [Target(argument) for argument in arguments if ":" in argument]
    patterns = [argument for argument in arguments if ":" not in argument] or ["*"]
    for name in scenarios():
        if not any(fnmatch.fnmatch(name, pattern) for pattern in patterns):
            continue
        started = time.perf_counter()
        transcripts = []
        for target in targets:
            try:
                transcripts.append(play(name, target, f"-{os.getpid()}"))
            except Exception as error:  # noqa: BLE001  a broken scenario must not end the run
                transcripts.append({"failed": f"{type(error).__name__}: {error}"})
        print(f"== {name} ({time.perf_counter() - started:.2f} s)")
        if len(transcripts) == 1:
            print(json.dumps(transcripts[0], indent=1))
        else:
            for path, kafka, ours in differences(*transcripts):
                print(f"   {path}\n      kafka {json.dumps(kafka)[:WIDTH]}\n      ours  {json.dumps(ours)[:WIDTH]}")


if __name__ == "__main__":
    main(sys.argv[1:])
