"""The processes behind `odradek.Broker`: they end with the process that started them, and cost it little."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import odradek
from odradek.processes import Launcher
from tests.kit.waiting import eventually

USER = """
import os, signal
import odradek
broker = odradek.Broker().start()
print(broker._process.pid, broker._launcher._process.pid, broker._launcher.root, flush=True)
{end}
"""


def started(end: str) -> tuple[subprocess.Popen[str], int, int, Path]:
    """A program that starts a broker: the program, the ids of broker and launcher, and their directory."""
    user = subprocess.Popen([sys.executable, "-c", USER.format(end=end)], stdout=subprocess.PIPE, text=True)
    assert user.stdout is not None
    broker, launcher, root = user.stdout.readline().split()
    user.stdout.close()
    return user, int(broker), int(launcher), Path(root)


def runs(pid: int) -> bool:
    """Whether a process runs; one that has ended but was not waited for does not."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


def ended(what: str, pid: int) -> None:
    eventually(f"the {what} has ended", lambda: runs(pid), lambda still: not still)


@pytest.mark.parametrize("end", ["", "os._exit(0)", "raise SystemExit(3)", "os.kill(os.getpid(), 9)"])
def test_everything_ends_with_its_user(end: str) -> None:
    user, broker, launcher, root = started(end)
    user.wait(60)
    ended("broker", broker)
    ended("launcher", launcher)
    eventually("the data is deleted", root.exists, lambda still: not still)


def test_a_fork_of_the_user_does_not_keep_brokers_alive() -> None:
    """A process that the user forked holds a copy of the socket."""
    user, broker, launcher, _ = started("os.fork() or (signal.alarm(90), signal.pause()); os._exit(0)")
    user.wait(60)
    ended("broker", broker)
    ended("launcher", launcher)


def test_brokers_end_with_the_launcher() -> None:
    user, broker, launcher, root = started("signal.pause()")
    os.kill(launcher, signal.SIGKILL)
    ended("broker", broker)
    user.kill()
    user.wait(60)
    shutil.rmtree(root)  # nobody is left who would


def test_a_new_launcher_follows_one_that_died() -> None:
    first = Launcher.shared()
    first._process.kill()
    first._process.wait()
    with odradek.Broker() as broker:
        assert broker.topics() == []
    assert Launcher.shared() is not first


def test_the_import_loads_no_server() -> None:
    program = "import sys, odradek; odradek.Broker; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    roots = {name.partition(".")[0] for name in loaded}
    assert not roots & {"broker", "cluster", "storage", "protocol", "config", "security", "client", "asyncio", "uvloop"}
