"""The common part of all layers of tests: time per layer, failed tests, and skips where Java or Maven is missing.

A layer is a directory under tests/. Marked tests (`java`, `spark`) are skipped with the reason on a machine without
what they need; under `CI=true` they run, and so fail, because there a skip would hide a broken machine.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import shutil
import signal
import subprocess
from collections import defaultdict
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

TESTS_DIR = Path(__file__).parent
JAVA_MINIMUM = 17

layer_seconds = pytest.StashKey[defaultdict[str, float]]()
# Taken from the environment: a test may start pytest, and what fails there is not for the run that it is part of.
failed_path = os.environ.pop("ODRADEK_FAILED", None)


@functools.cache
def missing_java() -> str | None:
    """Why no Java program can run here, or None when one can."""
    if shutil.which("java") is None:
        return f"Java {JAVA_MINIMUM} is not installed"
    said = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False).stderr
    version = re.search(r'version "(\d+)', said)
    if version is None or int(version[1]) < JAVA_MINIMUM:
        return f"Java {JAVA_MINIMUM} is needed, `java -version` says {said.splitlines()[0] if said else 'nothing'}"
    return None


@functools.cache
def missing_for(marker: str) -> str | None:
    """Why tests with this marker cannot run here, or None when they can."""
    if marker == "java":
        return missing_java() or (None if shutil.which("mvn") else "Maven is not installed")
    if marker == "spark":
        return missing_java() or (None if importlib.util.find_spec("pyspark") else "PySpark is not installed")
    return None


# How long an example takes says how busy the machine is; and whatever a random example shows can be shown again.
settings.register_profile(
    "odradek",
    settings.get_profile(settings.get_current_profile_name()),
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("odradek")


def pytest_configure(config: pytest.Config) -> None:
    # A shell starts background jobs with SIGINT ignored, and the tools that tests start would inherit that.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.stash[layer_seconds] = defaultdict(float)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.environ.get("CI") == "true":
        return
    for item in items:
        for marker in ("java", "spark"):
            if item.get_closest_marker(marker) and (reason := missing_for(marker)):
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> object:
    layer = item.path.relative_to(TESTS_DIR).parts[0] if item.path.is_relative_to(TESTS_DIR) else "elsewhere"
    item.config.stash[layer_seconds][layer] += call.duration
    return (yield)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note a failed test for `tests/kit/flaky.py`."""
    if failed_path and report.failed:
        with open(failed_path, "a", encoding="utf-8") as file:
            file.write(report.nodeid + "\n")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    seconds = config.stash[layer_seconds]
    if len(seconds) > 1:
        terminalreporter.section("time per layer")
        for layer, total in seconds.items():
            terminalreporter.write_line(f"{total:8.1f} s  {layer}")
