"""Plants a bug in a copy of the code, and runs the tests that must then fail."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from tests.kit.broker_process import ROOT

PACKAGES = ("broker", "client", "cluster", "config", "security")


class Mutant(NamedTuple):
    """Replace `code`, which occurs once in the file, by `bug`; the tests must then fail."""

    file: str
    code: str
    bug: str
    tests: str


def assert_caught(name: str, mutant: Mutant, directory: Path) -> None:
    """Fail unless the mutant's tests fail, in a copy of the code in `directory`."""
    for package in PACKAGES:
        shutil.copytree(ROOT / package, directory / package, ignore=shutil.ignore_patterns("__pycache__"))
    for each in ROOT.iterdir():
        if each.name not in PACKAGES and not each.name.startswith("."):
            (directory / each.name).symlink_to(each)
    path = directory / mutant.file
    text = path.read_text()
    assert text.count(mutant.code) == 1, "the code has changed"
    path.write_text(text.replace(mutant.code, mutant.bug))
    done = subprocess.run(
        [sys.executable, "-P", "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *mutant.tests.split(" ", 2)],
        cwd=directory,
        env={
            **os.environ,
            "PYTHONPATH": str(directory),
            "PYTHONDONTWRITEBYTECODE": "1",
            "ODRADEK_PATIENCE_S": "20",
        },
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 1, f"{name} was not caught:\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
    assert "failed" in done.stdout.splitlines()[-1], done.stdout[-2000:]
