"""Jobs run one after another in one process, as a user's command line would each: one JVM to start instead of many.

Run as a program it is that process: it reads a command a line (a JSON list, the job's name first), runs the job's
`main`, and answers with its exit code.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

from tests.kit.broker_process import ROOT
from tests.kit.spark.environment import spark_environment

EXIT = "exit code "


class WarmJobs:
    """The process, with everything that jobs said in the file `said`."""

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
        """Run a job; returns its exit code and what it printed to stdout, then to stderr."""
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


def _serve() -> None:
    for line in sys.stdin:
        name, *argv = json.loads(line)
        try:
            code = importlib.import_module(f"spark_jobs.jobs.{name}").main(argv)
        except SystemExit as ended:
            code = ended.code
        print(f"{EXIT}{code}", flush=True)


if __name__ == "__main__":
    _serve()
