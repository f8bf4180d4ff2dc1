"""Real clients that try to use a secured listener."""

from __future__ import annotations

import json
import subprocess
import sys

PYTHON_CLIENTS = ("librdkafka", "kafka-python", "aiokafka")


def attempt(client: str, settings: dict[str, str]) -> str:
    """The output line of `tests.compat.drivers.secured`."""
    command = [sys.executable, "-m", "tests.compat.drivers.secured", client, json.dumps(settings)]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout.strip()
