"""The zip of the jobs: PySpark's own spark-submit runs it where executors are processes of their own."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

import pyarrow.dataset  # type: ignore[import-untyped]

from spark_jobs.common.session import cache_dir
from spark_jobs.jobs import package
from tests.kit.broker_process import ROOT
from tests.kit.jars import spark_environment
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
    """PySpark as Spark's workers want it, with a place for their files that is not the environment's."""
    installed = importlib.util.find_spec("pyspark")
    assert installed is not None
    assert installed.origin is not None
    directory.mkdir()
    for path in Path(installed.origin).parent.iterdir():
        (directory / path.name).symlink_to(path)
    return directory


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_cluster_runs_the_zip(bootstrap: str, tmp_path: Path) -> None:
    """A lake of Avro values and of values that need their reasons: both are work for Python on the executors."""
    assert package.main([str(tmp_path / "jobs.zip")]) == 0
    (tmp_path / "schemas").mkdir()
    (tmp_path / "schemas" / "1.avsc").write_text(json.dumps(ORDER))
    (tmp_path / "orders.ddl").write_text("id INT")
    environment = {
        **os.environ,
        **spark_environment(),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_HOME": str(spark_home(tmp_path / "spark")),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    environment.pop("PYTHONPATH", None)
    (topic,) = make_topics(bootstrap, "orders", partitions=2)
    produce_values(bootstrap, topic, [*(avro(1, ORDER, {"id": number}) for number in range(500)), framed(9, b"")])
    ran = subprocess.run(
        [
            Path(sys.executable).parent / "spark-submit", "--master", "local-cluster[2,1,1024]",
            "--packages", package.connector_coordinate(), "--conf", f"spark.jars.ivy={cache_dir() / 'ivy'}",
            "--py-files", "jobs.zip", "jobs.py", "lake", "--bootstrap-servers", bootstrap, "--topics", topic,
            "--value-format", "avro", "--schemas", "schemas", "--schema", "orders.ddl",
            "--output", str(tmp_path / "table"), "--checkpoint", str(tmp_path / "checkpoint"),
        ],
        cwd=tmp_path, env=environment, check=False, capture_output=True, text=True, timeout=1000,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr[-5000:]
    assert "lake: 500 records and 1 dead letters in 1 batches" in ran.stdout

    def column(table: str, name: str) -> list[object]:
        files = pyarrow.dataset.dataset(tmp_path / table, partitioning="hive", exclude_invalid_files=True)
        return list(files.to_table()[name].to_pylist())

    assert sorted(map(str, column("table", "id"))) == sorted(map(str, range(500)))
    assert column("table-dead-letters", "dead_letter_reason") == ["schema id 9: not in schemas"]
