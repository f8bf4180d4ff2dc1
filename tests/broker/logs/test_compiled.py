"""The optional compiled build of compaction's record code."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from broker.logs import compiled

ROOT = Path(__file__).resolve().parents[3]
IMPORT = (
    "from broker.logs import compiled; compiled.use(); "
    "from protocol.records import compaction; print(compaction.__file__)"
)


def copy_of_the_sources(target: Path) -> Path:
    """A copy of the checkout, so that the original stays unchanged."""
    for package in ("broker", "odradek", "storage", "protocol", "tests"):
        shutil.copytree(ROOT / package, target / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", target)
    return target


def imported_from(root: Path, **environment: str) -> str:
    """The file from which a cleaner process of `root` imports its record code."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", IMPORT],
        env={**os.environ, "PYTHONPATH": str(root), **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def test_without_a_build_the_source_is_used(tmp_path: Path) -> None:
    root = copy_of_the_sources(tmp_path)
    assert imported_from(root) == str(root / compiled.SOURCE)


def test_a_build_of_another_source_is_not_used(tmp_path: Path) -> None:
    root = copy_of_the_sources(tmp_path)
    stale = compiled.directory(root)
    stale.mkdir(parents=True)
    (stale / "compaction.py").write_text("")
    assert imported_from(root) == str(stale / "compaction.py")
    assert imported_from(root, ODRADEK_COMPILED="0") == str(root / compiled.SOURCE)
    with (root / compiled.SOURCE).open("a") as source:
        source.write("# changed\n")
    assert imported_from(root) == str(root / compiled.SOURCE)


@pytest.mark.slow
def test_the_compiled_code_passes_the_tests_of_the_source(tmp_path: Path) -> None:
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler")
    root = copy_of_the_sources(tmp_path)
    built = compiled.build(root)
    assert imported_from(root).startswith(str(built))
    run_tests = "import sys, pytest; sys.exit(pytest.main(['-q', 'tests/protocol/test_compaction.py']))"
    done = subprocess.run(
        [sys.executable, "-P", "-c", f"{IMPORT}; {run_tests}"],
        env={**os.environ, "PYTHONPATH": str(root)},
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout
