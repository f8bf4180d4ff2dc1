"""Requests to a group coordinator, in order, by client. Apache Kafka 3.9.1's answers are in recorded/groups.json.

python -m tests.broker.groups.group_dialogues HOST:PORT [NAME...]

records them again, from a broker started with `group_fixture.SETTINGS`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from tests.broker.groups import membership_dialogues, offset_dialogues
from tests.broker.groups.dialogue_steps import DIALOGUES
from tests.broker.groups.group_fixture import GroupFixture, Remote

RECORDED = Path(__file__).parent / "recorded" / "groups.json"

__all__ = ["DIALOGUES", "RECORDED", "membership_dialogues", "offset_dialogues"]


def main(arguments: list[str]) -> None:
    """See the module."""
    host, port = arguments[0].rsplit(":", 1)
    place = Remote(host, int(port))
    place.await_coordinator("anybody")
    recorded = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
    salt = f"-{os.getpid()}"
    for name in arguments[1:] or DIALOGUES:
        fixture = GroupFixture(place, name, salt)
        started = time.perf_counter()
        try:
            DIALOGUES[name](fixture)
        finally:
            fixture.close()
            sys.stderr.write(f"{name}: {len(fixture.transcript)} answers, {time.perf_counter() - started:.1f} s\n")
        recorded[name] = fixture.transcript
        _write(recorded)


def _write(recorded: dict[str, Any]) -> None:
    lines = [
        f"{json.dumps(name)}: [\n" + ",\n".join(json.dumps(entry) for entry in recorded[name]) + "\n]"
        for name in sorted(recorded)
    ]
    RECORDED.parent.mkdir(exist_ok=True)
    RECORDED.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
