"""The examples in other languages, run with `odradek run` as their first line says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.broker_process import ROOT
from tests.kit.jars import QUICK_START, java, require

EXAMPLES = ROOT / "examples"
MOST_LINES = 40
NODE_RUNS_TYPESCRIPT = (22, 18)
NODE_TYPES = Path("/usr/share/nodejs/@types")
"""Debian's types of Node's modules; without them the compiler cannot check types."""


def run_with_broker(*command: str, directory: Path, **environment: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-P", "-m", "odradek", "run", "--", *command],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=500,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout


def node_version() -> tuple[int, ...]:
    shown = subprocess.run(["node", "--version"], capture_output=True, text=True, timeout=60, check=True).stdout
    return tuple(map(int, re.findall(r"\d+", shown)[:2]))


def compiled(source: Path, directory: Path) -> Path:
    """The example as JavaScript, which Node runs before version 22.18."""
    require("tsc")
    options = ["--module", "nodenext", "--target", "es2022", "--strict", "--skipLibCheck", "--outDir", str(directory)]
    types = ["--typeRoots", str(NODE_TYPES), "--types", "node"] if (NODE_TYPES / "node").exists() else []
    ran = subprocess.run(
        ["tsc", *options, *types, str(source)], capture_output=True, text=True, timeout=500, check=False
    )
    assert not types or ran.returncode == 0, ran.stdout
    return directory / source.with_suffix(".mjs").name


@pytest.mark.timeout(600)
def test_typescript(tmp_path: Path) -> None:
    require("node")
    source = EXAMPLES / "typescript" / "orders.test.mts"
    script = source if node_version() >= NODE_RUNS_TYPESCRIPT else compiled(source, tmp_path)
    run_with_broker("node", "--test", str(script), directory=tmp_path)


@pytest.mark.java
@pytest.mark.timeout(600)
def test_java(tmp_path: Path) -> None:
    require("java")
    run_with_broker(*java(*QUICK_START, str(EXAMPLES / "java" / "OrdersTest.java")), directory=tmp_path)


@pytest.mark.timeout(600)
def test_go() -> None:
    require("go")
    run_with_broker("go", "test", "-count=1", "./...", directory=EXAMPLES / "go", GOFLAGS="-mod=readonly")


def test_examples_are_short() -> None:
    sources = [path for path in EXAMPLES.rglob("*") if path.is_file()]
    assert len(sources) >= 4
    long = {path.name: count for path in sources if (count := path.read_text().count("\n")) > MOST_LINES}
    assert long == {}
