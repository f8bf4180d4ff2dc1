"""A user's program as a separate process: it works on a broker, and is killed and restarted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.kit.broker_process import ROOT
from tests.kit.jars import java, streams_and_connect_classpath

JAVA_SOURCES = Path(__file__).with_name("java")
TRY_AGAIN = 75
"""The exit code of a program that wants to be restarted (EX_TEMPFAIL)."""
_STOP_S = 60.0


def java_command(*arguments: str, classpath: str | None = None) -> list[str]:
    """The command for a program of this folder, or for a class of Kafka Streams and Kafka Connect 3.9, with its
    arguments. It uses `classpath`, by default theirs.
    """
    options = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    logging = ["-Dorg.slf4j.simpleLogger.showDateTime=true", "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS"]
    return java(*options, *logging, "-cp", classpath or streams_and_connect_classpath(), *arguments)


def java_source(name: str) -> str:
    """The path of a program of this folder, which `java` compiles and runs."""
    return str(JAVA_SOURCES / f"{name}.java")


def python_command(module: str, *arguments: str) -> list[str]:
    """A Python program with its arguments."""
    return [sys.executable, "-P", "-m", module, *arguments]


class Program:
    """Runs `command`; `start` may follow `kill`. `log` holds its output."""

    def __init__(self, command: Sequence[str], log: Path) -> None:
        self.log = log
        self._command = list(command)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it without waiting."""
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                self._command,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def kill(self) -> None:
        """Kill it (SIGKILL), if it was started."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Stop it (SIGTERM), and kill it if that takes too long."""
        self._end(signal.SIGTERM)

    def restart(self, command: Sequence[str] | None = None) -> None:
        """Kill it and restart it, or start this command instead."""
        self.kill()
        self._command = self._command if command is None else list(command)
        self.start()

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(number)
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def ensure_runs(self) -> None:
        """Restart a program that exited with TRY_AGAIN; fails for any other exit code."""
        assert self._process is not None
        code = self._process.poll()
        if code == TRY_AGAIN:
            self.start()
            return
        assert code is None, f"{self.log.stem} ended with {code}:\n{self.tail()}"

    def tail(self) -> str:
        """The end of its output."""
        return self.log.read_text(errors="replace")[-4000:]
