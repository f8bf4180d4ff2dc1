"""The README's first minute: its commands run as printed, and print the shown output."""

from __future__ import annotations

from pathlib import Path

from tests.docs.transcript import broker_of, code_blocks, dialogue
from tests.kit.broker_process import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_first_minute_is_as_printed(tmp_path: Path) -> None:
    start = next(line for line in code_blocks(README, "sh")[0].splitlines() if line.startswith("bin/kafka-server"))
    with broker_of(start, tmp_path) as terminal:
        (transcript,) = code_blocks(README, "console")
        for command, expected in dialogue(transcript):
            assert terminal.run(command).split() == expected.split(), command
