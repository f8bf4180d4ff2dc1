"""The job `upsert` as a user runs it, a process to kill and to restart."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from tests.kit.broker_process import ROOT
from tests.kit.spark.environment import spark_environment
from tests.kit.waiting import eventually
from tests.spark.warm_jobs import WarmJobs

PATIENCE_S = 240.0


def a_topic(bootstrap: str, *, partitions: int) -> str:
    """Create a topic with a unique name."""
    name = f"changes-{uuid.uuid4()}"
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(name, num_partitions=partitions)])[name].result(30)
    return name


class UpsertJob:
    """The job on one table, in a separate process group so that its JVM dies with it."""

    def __init__(self, bootstrap: str, topic: str, directory: Path, ddl: str, *options: str) -> None:
        directory.mkdir()
        self._directory = directory
        self._said = directory / "upsert.log"
        self.table = str(directory / "table")
        schema = directory / "row.ddl"
        schema.write_text(ddl)
        self._options = [
            "--bootstrap-servers", bootstrap, "--topics", topic, "--schema", str(schema),
            "--output", self.table, "--checkpoint", str(directory / "checkpoint"), *options,
        ]  # fmt: skip

    def start(self, *options: str) -> subprocess.Popen[bytes]:
        with self._said.open("wb") as said:
            return subprocess.Popen(
                [sys.executable, "-m", "spark_jobs.jobs.upsert", "--master", "local[2]", *self._options, *options],
                cwd=self._directory,
                env={**os.environ, **spark_environment(), "PYTHONPATH": str(ROOT)},
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def said(self) -> str:
        """Output since the last start."""
        return self._said.read_text(errors="replace")

    def run(self, jobs: WarmJobs) -> str:
        """Run until everything up to the current end is in the table; returns the job's last line."""
        code, said = jobs.run("upsert", *self._options)
        assert code == 0, said[-5000:]
        return said.splitlines()[0]

    def commits(self) -> int:
        """The number of snapshots that are committed and not yet removed."""
        return len(list((self._directory / "table" / "_commits").glob("0*.json")))

    def kill_in_the_middle_of_a_batch(self, process: subprocess.Popen[bytes], *, after_batches: int) -> None:
        """Kill it when this many batches are in the table, together with files of an uncommitted snapshot."""
        snapshots = self._directory / "table" / "_snapshots"

        def is_writing() -> bool:
            assert process.poll() is None, self.said()[-5000:]
            if self.commits() < after_batches:
                return False
            return any(holds_a_file(path) for path in self._uncommitted(snapshots))

        eventually("the job is writing a snapshot", is_writing, patience_s=PATIENCE_S, pause_s=0.005)
        kill_group(process)

    def _uncommitted(self, snapshots: Path) -> list[Path]:
        commits = {path.stem for path in (self._directory / "table" / "_commits").glob("0*.json")}
        return [path for path in snapshots.glob("0*") if path.name.partition("-")[0] not in commits]


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill the job and its JVM (SIGKILL)."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(60)


def holds_a_file(directory: Path) -> bool:
    """Whether there is Parquet below; the directory may disappear meanwhile, which `rglob` would not tolerate."""
    return any(name.endswith(".parquet") for _, _, names in os.walk(directory) for name in names)
