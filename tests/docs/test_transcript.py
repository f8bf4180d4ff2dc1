"""Commands in the README and in docs/ run as printed, and print the shown output."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.docs.transcript import broker_of, code_blocks, dialogue
from tests.kit.broker_process import ROOT
from tests.kit.jars import require

README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_first_minute_is_as_printed(tmp_path: Path) -> None:
    start = next(line for line in code_blocks(README, "sh")[0].splitlines() if line.startswith("bin/kafka-server"))
    with broker_of(start, tmp_path) as terminal:
        (transcript,) = code_blocks(README, "console")
        for command, expected in dialogue(transcript):
            assert terminal.run(command).split() == expected.split(), command


CONTROL_API = (ROOT / "docs/control-api.md").read_text(encoding="utf-8")


def shows(expected: str, output: str) -> bool:
    """Whether a page may show `output` so: three dots stand for anything."""
    pattern = ".*".join(re.escape(" ".join(part.split())) for part in expected.split("..."))
    return re.fullmatch(pattern, " ".join(output.split())) is not None


def test_the_control_api_is_as_printed() -> None:
    """The first command starts a broker for itself; the others run in one shell with another broker."""
    require("curl")
    (definition,) = code_blocks(CONTROL_API, "sh")
    (first, *others) = [step for block in code_blocks(CONTROL_API, "console") for step in dialogue(block)]
    assert len(others) >= 12
    script = definition + "".join(f"{command}\necho '-- end'\n" for command, _ in others)
    environment = {**os.environ, "ODRADEK_PYTHON": sys.executable, "PATH": f"{ROOT / 'bin'}:{os.environ['PATH']}"}

    def run(*command: str) -> str:
        ran = subprocess.run(
            command,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=100,
        )
        assert ran.returncode == 0, ran.stdout
        return ran.stdout

    assert shows(first[1], run("sh", "-c", first[0]))
    outputs = run("odradek", "run", "--", "sh", "-ec", script).split("-- end\n")
    for (command, expected), output in zip(others, outputs, strict=False):
        assert shows(expected, output), (command, output)
    assert len(outputs) == len(others) + 1
