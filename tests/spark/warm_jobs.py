"""Run jobs one after another in one process, as a user's command lines would: one JVM to start instead of many.

Run as a program it is that process: it reads a command a line (a JSON list, the job's name first), runs the job's
`main`, and answers with its exit code. Jobs with the same settings share Spark's context, which takes longer to start
than they take to run. Each has a separate session.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from spark_jobs.common import runner
from spark_jobs.common.session import build_session
from tests.kit.broker_process import ROOT
from tests.kit.spark.environment import spark_environment

EXIT = "exit code "


class WarmJobs:
    """The process; the file `said` has the whole output of the jobs."""

    def __init__(self, directory: Path) -> None:
        self.said = directory / "jobs.log"
        with self.said.open("ab") as said:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.spark.warm_jobs"],
                cwd=directory,
                env={**os.environ, **spark_environment(), "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=said,
                start_new_session=True,
                text=True,
            )

    def run(self, name: str, *options: str) -> tuple[int, str]:
        """Run a job, or a module by its full name; returns its exit code, then its stdout and stderr."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        begin = self.said.stat().st_size
        self._process.stdin.write(json.dumps([name, *options, "--master", "local[2]"]) + "\n")
        self._process.stdin.flush()
        lines = []
        for line in self._process.stdout:
            if line.startswith(EXIT):
                said = self.said.read_bytes()[begin:].decode(errors="replace")
                return int(line.removeprefix(EXIT)), "".join(lines) + said
            lines.append(line)
        raise AssertionError(f"the jobs' process ended: {self.said.read_text(errors='replace')[-5000:]}")

    def close(self) -> None:
        """End the process and its JVM."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, 9)
        self._process.wait(60)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


class _Context:
    """Spark's context, kept while jobs have the same settings."""

    def __init__(self) -> None:
        self._first: SparkSession | None = None
        self._options: dict[str, Any] = {}
        self._jobs = 0

    def session(self, app_name: str, **options: Any) -> SparkSession:
        """Like `build_session`; stopping the session does nothing."""
        if self._first is None or options != self._options:
            if self._first is not None:
                self._first.stop()
                self._first = None
            self._first, self._options = build_session(app_name, **options), options
        # Use new Python workers: a worker caches the schemas that it has looked up.
        self._jobs += 1
        self._first.sparkContext.environment["ODRADEK_TESTED_JOB"] = str(self._jobs)
        session = self._first.newSession()
        session.stop = lambda: None  # type: ignore[method-assign]
        return session


def _serve() -> None:
    runner.build_session = _Context().session
    for line in sys.stdin:
        name, *argv = json.loads(line)
        try:
            code = importlib.import_module(name if "." in name else f"spark_jobs.jobs.{name}").main(argv)
        except SystemExit as ended:
            code = ended.code
        print(f"{EXIT}{code}", flush=True)


if __name__ == "__main__":
    _serve()
