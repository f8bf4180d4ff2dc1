"""Failures caused by a busy machine do not fail a run; others do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.flaky import MOST_FAILED, failed_tests, fails_again

ROOT = Path(__file__).parents[2]


def test_a_test_that_passes_alone_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert not fails_again(["tests/a.py::test_a[x y]", "tests/b.py::test_b"], lambda _: True)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == ["FLAKY tests/a.py", "FLAKY tests/b.py"]


def test_a_test_that_fails_twice_fails_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert fails_again(["one", "two"], lambda test: test == "one")
    assert "FLAKY one" in capsys.readouterr().out


def test_many_failures_are_not_tried_again() -> None:
    assert fails_again([f"test {number}" for number in range(MOST_FAILED + 1)], lambda _: pytest.fail("was run"))


@pytest.mark.parametrize("phase", ["setup", "call", "teardown"])
def test_failures_of_a_run_are_noted(tmp_path: Path, phase: str) -> None:
    """A real run of one good and one bad test records the bad one's id, in whichever phase it failed."""
    tests = tmp_path / "test_some.py"
    tests.write_text(
        "import pytest\n"
        "@pytest.fixture\n"
        f"def state():\n    assert {phase!r} != 'setup'\n    yield\n    assert {phase!r} != 'teardown'\n"
        "@pytest.mark.parametrize('text', ['a b'])\n"
        f"def test_bad(text, state):\n    assert {phase!r} != 'call'\n"
        "def test_good():\n    pass\n"
    )
    noted = tmp_path / "failed"
    command = [sys.executable, "-m", "pytest", "-c", str(ROOT / "pyproject.toml"), "-p", "tests.conftest", str(tests)]
    ended = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "ODRADEK_FAILED": str(noted)}, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 1, ended.stdout
    failed = failed_tests([noted])
    assert [test.split("::")[1] for test in failed] == ["test_bad[a b]"], ended.stdout
