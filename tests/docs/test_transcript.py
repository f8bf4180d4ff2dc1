"""The README's first minute: its commands run as printed, and print what it shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.kit.broker_process import await_port, free_port

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
ADDRESS = "127.0.0.1:9092"


def code_blocks(language: str) -> list[str]:
    """The README's code blocks in `language`, in order."""
    return re.findall(rf"(?ms)^```{language}\n(.*?)^```$", README)


def dialogue(block: str) -> list[tuple[str, str]]:
    """(command, output) pairs of a block whose commands begin with `$ `."""
    steps = re.split(r"(?m)^\$ ", block)[1:]
    return [(step.partition("\n")[0], step.partition("\n")[2]) for step in steps]


def test_the_first_minute_is_as_printed(tmp_path: Path) -> None:
    start = next(line for line in code_blocks("sh")[0].splitlines() if line.startswith("bin/kafka-server-start.sh"))
    address = f"127.0.0.1:{free_port()}"
    # The interpreter of the tests has what the broker needs; bin/ installs nothing then.
    environment = {**os.environ, "ODRADEK_PYTHON": sys.executable, "LOG_DIR": str(tmp_path / "logs")}
    output = tmp_path / "broker.log"
    overrides = f"--override listeners=PLAINTEXT://{address} --override log.dirs={tmp_path / 'data'}"
    with output.open("wb") as log:
        broker = subprocess.Popen(
            ["sh", "-c", f"exec {start} {overrides}"], cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT
        )
    try:
        await_port(int(address.rpartition(":")[2]), broker, output, 60)
        (transcript,) = code_blocks("console")
        for command, expected in dialogue(transcript):
            done = subprocess.run(
                ["sh", "-c", command.replace(ADDRESS, address)],
                cwd=ROOT,
                env=environment,
                capture_output=True,
                text=True,
                check=True,
                timeout=90,
            )
            printed = done.stdout + done.stderr
            assert printed.split() == expected.split(), command
    finally:
        broker.terminate()
        assert broker.wait(60) == 0
