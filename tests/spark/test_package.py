"""The zip of the jobs: PySpark's own spark-submit runs it with executors in separate processes."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

import pyarrow.dataset  # type: ignore[import-untyped]

from spark_jobs.common.session import ivy_dir
from spark_jobs.jobs import package
from tests.kit.broker_process import ROOT, free_port
from tests.kit.due import turn
from tests.kit.spark.environment import spark_environment
from tests.spark.job_runs import make_topics, produce_values
from tests.spark.schemas.registry import avro, framed

ORDER = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "int"}]}


def test_the_zip_holds_the_jobs_and_nothing_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert package.main([str(tmp_path / "jobs.zip")]) == 0
    assert f"--py-files {tmp_path}/jobs.zip {tmp_path}/jobs.py lake ..." in capsys.readouterr().out
    names = zipfile.ZipFile(tmp_path / "jobs.zip").namelist()
    assert sorted(names) == sorted(str(path.relative_to(ROOT)) for path in (ROOT / "spark_jobs").rglob("*.py"))
    package.main([str(tmp_path / "again.zip")])
    assert (tmp_path / "jobs.zip").read_bytes() == (tmp_path / "again.zip").read_bytes()
    assert package.main([str(tmp_path / "jobs.tar")]) == 1
    assert "jobs.tar: must end in .zip" in capsys.readouterr().err


def spark_home(directory: Path) -> Path:
    """PySpark as Spark's workers need it, with a directory for their files outside the environment."""
    installed = importlib.util.find_spec("pyspark")
    assert installed is not None
    assert installed.origin is not None
    directory.mkdir()
    for path in Path(installed.origin).parent.iterdir():
        (directory / path.name).symlink_to(path)
    return directory


class Orders:
    """A lake of Avro values and dead letters: both need Python on the executors."""

    def __init__(self, bootstrap: str, directory: Path) -> None:
        self.directory = directory
        (directory / "schemas").mkdir()
        (directory / "schemas" / "1.avsc").write_text(json.dumps(ORDER))
        (directory / "orders.ddl").write_text("id INT")
        self.environment = {
            **os.environ,
            **spark_environment(),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_HOME": str(spark_home(directory / "spark")),
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        self.environment.pop("PYTHONPATH", None)
        (topic,) = make_topics(bootstrap, "orders", partitions=2)
        values = (avro(1, ORDER, {"id": number}) for number in range(500))
        produce_values(bootstrap, topic, [*values, framed(9, b"")])
        self.options = [
            "lake", "--bootstrap-servers", bootstrap, "--topics", topic,
            "--value-format", "avro", "--schemas", "schemas", "--schema", "orders.ddl",
            "--output", str(directory / "table"), "--checkpoint", str(directory / "checkpoint"),
        ]  # fmt: skip

    def run(self, *command: str | Path, **environment: str) -> None:
        """Run the job with `command` before its options, and compare its output."""
        ran = subprocess.run(
            [*command, *self.options], cwd=self.directory, env={**self.environment, **environment},
            check=False, capture_output=True, text=True, timeout=1000,
        )  # fmt: skip
        assert ran.returncode == 0, ran.stdout + ran.stderr[-5000:]
        assert "lake: 500 records and 1 dead letters in 1 batches" in ran.stdout
        assert sorted(map(str, self._column("table", "id"))) == sorted(map(str, range(500)))
        assert self._column("table-dead-letters", "dead_letter_reason") == ["schema id 9: not in schemas"]

    def _column(self, table: str, name: str) -> list[object]:
        files = pyarrow.dataset.dataset(self.directory / table, partitioning="hive", exclude_invalid_files=True)
        return list(files.to_table()[name].to_pylist())


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(1200)
@turn(0, of=2)
def test_a_cluster_runs_the_zip(bootstrap: str, tmp_path: Path) -> None:
    assert package.main([str(tmp_path / "jobs.zip")]) == 0
    Orders(bootstrap, tmp_path).run(
        Path(sys.executable).parent / "spark-submit", "--master", "local-cluster[2,1,1024]",
        "--packages", package.connector_coordinate(), "--conf", f"spark.jars.ivy={ivy_dir()}",
        "--py-files", "jobs.zip", "jobs.py",
    )  # fmt: skip


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(1200)
@turn(1, of=2)
def test_a_cluster_that_master_names_gets_the_code(bootstrap: str, tmp_path: Path) -> None:
    """Spark's own standalone cluster, whose processes do not use the checkout."""
    orders = Orders(bootstrap, tmp_path)
    port = free_port()
    master = f"spark://127.0.0.1:{port}"
    with (
        daemon(orders, "master.Master", "--port", str(port)),
        daemon(orders, "worker.Worker", "--cores", "2", "--memory", "1g", "--work-dir", str(tmp_path / "work"), master),
    ):
        orders.options += ["--master", master]
        orders.run(sys.executable, "-m", "spark_jobs", PYTHONPATH=str(ROOT))


@contextmanager
def daemon(orders: Orders, name: str, *options: str) -> Iterator[None]:
    """A process of a standalone cluster."""
    with (orders.directory / f"{name}.log").open("wb") as said:
        command = [Path(orders.environment["SPARK_HOME"]) / "bin" / "spark-class", f"org.apache.spark.deploy.{name}"]
        running = subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--webui-port", "0", *options],
            env=orders.environment, cwd=orders.directory, stdout=said, stderr=said, start_new_session=True,
        )  # fmt: skip
    try:
        yield
    finally:
        os.killpg(running.pid, signal.SIGKILL)
        running.wait(60)
