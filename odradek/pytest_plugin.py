"""The pytest plug-in: fixture `kafka`, a broker or a cluster that is new for each test.

    @pytest.mark.odradek(config={"message.max.bytes": 1000})
    def test_order(kafka):
        app = start_app(kafka.bootstrap_servers)

    @pytest.mark.odradek(brokers=3)
    def test_failover(kafka):
        kafka.kill(kafka.await_leader("orders"))

A session, or a worker of pytest-xdist, starts one broker or cluster for each configuration, and replaces it before each
test that uses it. The replacement starts while the test before runs.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from odradek import aio
    from odradek.brokers import Broker
    from odradek.clusters import Cluster

MARK = "odradek"
_BROKER = pytest.StashKey["Broker | Cluster"]()
"""The broker of a test."""
_BROKERS = pytest.StashKey[dict[Any, "Broker | Cluster"]]()


def pytest_configure(config: pytest.Config) -> None:
    """Declare the mark."""
    options = "config={}, brokers=1, tls=False, sasl=None, keep_address=False"
    config.addinivalue_line("markers", f"{MARK}({options}): how the broker of `kafka` is started")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Start the launcher early if a test of this process needs it."""
    uses = any("kafka" in getattr(item, "fixturenames", ()) for item in session.items)
    if uses and not session.config.option.collectonly and not session.config.getoption("numprocesses", None):
        from odradek.processes import Launcher

        Launcher.shared()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Fail a test that set a fault which hit nothing."""
    yield
    broker = item.stash.get(_BROKER, None)
    if broker is not None and broker.is_running:
        broker.check_faults()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the broker's last requests and its groups below a failed test."""
    report: pytest.TestReport = yield
    broker = item.stash.get(_BROKER, None)
    if report.when == "call" and report.failed and broker is not None and broker.is_running:
        report.sections.append(("odradek", broker.report()))
    return report


def pytest_unconfigure(config: pytest.Config) -> None:
    """Stop the brokers."""
    for broker in config.stash.get(_BROKERS, {}).values():
        broker.stop()


@pytest.fixture
def kafka(request: pytest.FixtureRequest) -> Broker | Cluster:
    """A broker without topics, on a port that no test had before. The mark `odradek` configures it.

    With `brokers=3` in the mark it is a cluster of three. With `keep_address=True` the port is the same in each test.
    """
    options = _options(request)
    config = {name: str(value) for name, value in options.pop("config", {}).items()}
    brokers = request.config.stash.setdefault(_BROKERS, {})
    key = tuple(sorted(options.items())), tuple(sorted(config.items()))
    broker = brokers.get(key)
    if broker is None:
        broker = brokers[key] = _start(config, **options)
    else:
        broker.reset()
    broker.prepare_reset()
    request.node.stash[_BROKER] = broker
    return broker


@pytest.fixture
def akafka(kafka: Broker | Cluster) -> aio.Broker | aio.Cluster:
    """The broker or the cluster of `kafka` with coroutines, for pytest-asyncio, anyio and the like."""
    from odradek import aio
    from odradek.brokers import Broker

    return aio.Broker(kafka) if isinstance(kafka, Broker) else aio.Cluster(sync=kafka)


def _start(config: Mapping[str, object], brokers: int = 1, **options: Any) -> Broker | Cluster:
    if brokers == 1:
        from odradek.brokers import Broker

        return Broker(config=config, **options).start()
    if options.pop("keep_address", False):
        raise pytest.UsageError("keep_address works for one broker, not for a cluster")
    from odradek.clusters import Cluster

    return Cluster(brokers, config=config, **options).start()


def _options(request: pytest.FixtureRequest) -> dict[str, Any]:
    mark = request.node.get_closest_marker(MARK)
    if mark is None:
        return {}
    unknown = set(mark.kwargs) - {"config", "brokers", "tls", "sasl", "keep_address"}
    if unknown or mark.args:
        given = ", ".join(sorted(unknown)) or mark.args
        known = "config, brokers, tls, sasl and keep_address"
        raise pytest.UsageError(f"{request.node.nodeid}: the mark {MARK} takes {known}, not {given}")
    return dict(mark.kwargs)
