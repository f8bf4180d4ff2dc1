"""Shared by all layers of tests: time per layer, the tests with the most processor time, failed tests, and skips if
Java or Maven is missing.

A layer is a directory under tests/. Marked tests (`java`, `spark`) are skipped with the reason on a machine that lacks
their requirements; under `CI=true` they run, and so fail, because there a skip would hide a broken machine.
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

pytest_plugins = ["odradek.pytest_plugin"]
TESTS_DIR = Path(__file__).parent
JAVA_MINIMUM = 17

SHOWN_TESTS = 15
"""How many tests the summary lists, by processor time."""

layer_seconds = pytest.StashKey[defaultdict[str, float]]()
cpu_seconds = pytest.StashKey[dict[str, float]]()
"""By test: processor time of pytest and of the child processes that have ended."""
# Removed from the environment: a test may start pytest, whose failures do not belong to this run.
failed_path = os.environ.pop("ODRADEK_FAILED", None)


@functools.cache
def missing_java() -> str | None:
    """Why no Java program can run here, or None if one can."""
    if shutil.which("java") is None:
        return f"Java {JAVA_MINIMUM} is not installed"
    said = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False).stderr
    version = re.search(r'version "(\d+)', said)
    if version is None or int(version[1]) < JAVA_MINIMUM:
        return f"Java {JAVA_MINIMUM} is needed, `java -version` says {said.splitlines()[0] if said else 'nothing'}"
    return None


@functools.cache
def missing_for(marker: str) -> str | None:
    """Why tests with this marker cannot run here, or None if they can."""
    if marker == "java":
        return missing_java() or (None if shutil.which("mvn") else "Maven is not installed")
    if marker == "spark":
        return missing_java() or (None if importlib.util.find_spec("pyspark") else "PySpark is not installed")
    return None


# The duration of an example depends on the load of the machine; and a failing random example must be reproducible.
settings.register_profile(
    "odradek",
    settings.get_profile(settings.get_current_profile_name()),
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("quick", settings.get_profile("odradek"), max_examples=10)
settings.load_profile("quick" if os.environ.get("ODRADEK_QUICK") else "odradek")


_STARTS_PROCESSES = re.compile(r"subprocess|broker_process|broker_cluster|kit\.zookeeper|small_disk|executor_worker")
_TAKES_LONG = {
    "test_closed_connections.py", "test_corruption.py", "test_cut_logs.py", "test_log_cleaner_crashes.py",
    "test_log_cleaner_readers.py", "test_loop_holds.py", "test_parallel_loading.py",
}  # fmt: skip
left_out_files: list[str] = []
"""The files that `bin/test --quick` does not run."""


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Ignore files whose tests start processes or take long, for `bin/test --quick`."""
    if not os.environ.get("ODRADEK_QUICK") or collection_path.suffix != ".py" or collection_path.parent == TESTS_DIR:
        return None
    if collection_path.name not in _TAKES_LONG and not _STARTS_PROCESSES.search(collection_path.read_text()):
        return None
    left_out_files.append(str(collection_path.relative_to(TESTS_DIR)))
    return True


def pytest_configure(config: pytest.Config) -> None:
    # A shell starts background jobs with SIGINT ignored, nohup with SIGHUP ignored, and child processes inherit that.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    config.stash[layer_seconds] = defaultdict(float)
    config.stash[cpu_seconds] = {}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.environ.get("CI") == "true":
        return
    for item in items:
        for marker in ("java", "spark"):
            if item.get_closest_marker(marker) and (reason := missing_for(marker)):
                item.add_marker(pytest.mark.skip(reason=reason))


def layer_of(nodeid: str) -> str:
    """The layer of a test by its node ID, which begins with the path of its file."""
    parts = nodeid.split("/")
    return parts[1] if parts[0] == TESTS_DIR.name and len(parts) > 2 else "elsewhere"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> object:
    before = sum(os.times()[:4])
    outcome = yield
    item.config.stash[cpu_seconds][item.nodeid] = sum(os.times()[:4]) - before
    return outcome


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> object:
    item.config.stash[layer_seconds][layer_of(item.nodeid)] += call.duration
    return (yield)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Record a failed test for `tests/kit/flaky.py`."""
    if failed_path and report.failed:
        with open(failed_path, "a", encoding="utf-8") as file:
            file.write(report.nodeid + "\n")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if left_out_files:
        terminalreporter.section("left out by --quick")
        terminalreporter.write_line("whatever needs Java or Spark, most examples of properties, and these files:")
        terminalreporter.write_line(" ".join(left_out_files))
    seconds, cpu = config.stash[layer_seconds], config.stash[cpu_seconds]
    if len(seconds) < 2:
        return
    terminalreporter.section("time per layer (of which processors)")
    for layer, total in seconds.items():
        busy_s = sum(cpu[nodeid] for nodeid in cpu if layer_of(nodeid) == layer)
        terminalreporter.write_line(f"{total:8.1f} s ({busy_s:7.1f} s)  {layer}")
    terminalreporter.section(f"the {SHOWN_TESTS} tests that take most processor time")
    for nodeid in sorted(cpu, key=cpu.__getitem__, reverse=True)[:SHOWN_TESTS]:
        terminalreporter.write_line(f"{cpu[nodeid]:8.1f} s  {nodeid}")
