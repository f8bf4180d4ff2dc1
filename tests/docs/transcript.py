"""Code blocks of a page as a user types them: the broker that it starts, and commands with their output."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.kit.broker_process import ROOT, await_port, free_port

ADDRESS = "127.0.0.1:9092"
"""The broker's address in the pages."""


def code_blocks(page: str, language: str) -> list[str]:
    """The page's code blocks in `language`, in order."""
    return re.findall(rf"(?ms)^```{language}\n(.*?)^```$", page)


def dialogue(block: str) -> list[tuple[str, str]]:
    """(command, output) pairs of a block whose commands begin with `$ ` and continue after a backslash."""
    steps = re.findall(r"(?m)^\$ ((?:.*\\\n)*.*\n)((?:(?!\$ ).*\n)*)", block)
    return [(command.strip(), output) for command, output in steps]


class Terminal:
    """A user's terminal in the checkout, with a broker on a free port substituted for the page's `ADDRESS`."""

    def __init__(self, address: str, environment: dict[str, str]) -> None:
        self._address = address
        self._environment = environment

    def run(self, command: str, timeout_s: float = 90) -> str:
        """The command's output, as the terminal shows it; fails if the command does."""
        done = subprocess.run(
            ["sh", "-c", command.replace(ADDRESS, self._address)],
            cwd=ROOT, env=self._environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
            timeout=timeout_s,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout
        return done.stdout


@contextlib.contextmanager
def broker_of(start: str, directory: Path, **environment: str) -> Iterator[Terminal]:
    """Run the broker of a page's `start` command, with its data in `directory`, for the duration of a block."""
    address = f"127.0.0.1:{free_port()}"
    # The interpreter of the tests has the requirements of broker and jobs; bin/ installs nothing then.
    whole = {**os.environ, "ODRADEK_PYTHON": sys.executable, "LOG_DIR": str(directory / "logs"), **environment}
    output = directory / "broker.log"
    overrides = f"--override listeners=PLAINTEXT://{address} --override log.dirs={directory / 'data'}"
    with output.open("wb") as log:
        broker = subprocess.Popen(
            ["sh", "-c", f"exec {start} {overrides}"], cwd=ROOT, env=whole, stdout=log, stderr=subprocess.STDOUT
        )
    try:
        await_port(int(address.rpartition(":")[2]), broker, output, 60)
        yield Terminal(address, whole)
    finally:
        broker.terminate()
        assert broker.wait(60) == 0
