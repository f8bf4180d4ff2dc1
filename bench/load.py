"""The load: the C program, compiled on first use, Kafka's perf tools, and a Spark session."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from bench.processes import Finished, cpu_s, run, stop
from tests.kit.jars import cache_directory, java, kafka_classpath
from tests.kit.spark.environment import long_lived_spark_environment

SOURCES = sorted(Path(__file__).parent.glob("load*.[ch]"))
LIBRARIES = ("-lrdkafka", "-lssl", "-lcrypto")
INSTALLED = "Debian: apt-get install gcc librdkafka-dev libssl-dev"
TIMEOUT_S = 900


def compile_load() -> Path:
    """The path of the compiled `load`, rebuilt if a source is newer; raises RuntimeError naming missing packages."""
    binary = cache_directory() / "bench-load"
    if binary.exists() and binary.stat().st_mtime >= max(source.stat().st_mtime for source in SOURCES):
        return binary
    compiler = os.environ.get("CC") or "cc"
    if shutil.which(compiler) is None:
        raise RuntimeError(f"a C compiler is needed for bench/load.c ({INSTALLED})")
    binary.parent.mkdir(parents=True, exist_ok=True)
    partial = binary.with_suffix(".partial")
    compiled = [str(source) for source in SOURCES if source.suffix == ".c"]
    try:
        run([compiler, "-O2", "-pthread", "-o", str(partial), *compiled, *LIBRARIES], TIMEOUT_S)
    except RuntimeError as failure:
        raise RuntimeError(f"bench/load.c: {failure}\n({INSTALLED})") from None
    partial.rename(binary)
    return binary


class Load:
    """Runs one load after the other; every method raises RuntimeError if a record was lost or refused."""

    def __init__(self) -> None:
        self._binary = str(compile_load())

    def run(self, mode: str, address: str, topic: str, *arguments: object) -> dict[str, Any]:
        """Run a mode of load.c and return its output."""
        done = run([self._binary, mode, address, topic, *map(str, arguments)], TIMEOUT_S)
        result: dict[str, Any] = json.loads(done.output)
        return result

    def spawn(self, mode: str, address: str, topic: str, *arguments: object) -> subprocess.Popen[bytes]:
        """Start a mode that waits for the broker, or runs while something happens to it, with its output in a pipe."""
        command = [self._binary, mode, address, topic, *map(str, arguments)]
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)

    def kafka_tool(self, main_class: str, *arguments: str) -> Finished:
        """Run a class of Kafka's tools to completion."""
        return run(java("-Xmx512M", "-cp", kafka_classpath(), main_class, *arguments), TIMEOUT_S)


class SparkSession:
    """One Spark session that works on request. It starts once, so that no sample includes its start."""

    def __init__(self) -> None:
        self._errors = (cache_directory() / "bench-spark.log").open("wb")
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "bench.spark_session"],
            env={**os.environ, **long_lived_spark_environment()},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with contextlib.suppress(BrokenPipeError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        stop([self._process])
        self._errors.close()

    def do(self, what: str, **arguments: object) -> tuple[int, float, float]:
        """Let the session do `what` (see `bench.spark_session`): (records, seconds, CPU seconds of Spark).

        Raises RuntimeError if Spark dies.
        """
        if self._process.stdin is None or self._process.stdout is None:
            raise RuntimeError("the Spark session has no pipes")
        before = cpu_s(self._process.pid)
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps({"do": what, **arguments}).encode() + b"\n")
            self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith(b"{"):
                result = json.loads(line)
                return result["records"], result["seconds"], cpu_s(self._process.pid) - before
        raise RuntimeError(f"Spark ended before it was done with {what}; see {self._errors.name}")
