"""A topic is deleted and recreated while clients use it: they notice, and continue with the new one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.compat.conftest import NewDriver
from tests.compat.driver_process import CLIENTS, Driver, Member, Record
from tests.kit.broker_process import BrokerProcess, free_port
from tests.kit.scraping import scrape
from tests.kit.waiting import eventually

OLD, NEW = 20, 50
"""Records in the first topic of a name and in the second."""
MORE = 2000
"""How many acknowledgements to wait for."""

pytestmark = pytest.mark.parametrize("client", CLIENTS)


@pytest.fixture(scope="module")
def metrics_port() -> int:
    """The port of the broker's metrics."""
    return free_port()


@pytest.fixture(scope="module")
def address(metrics_port: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A broker that does not auto-create topics."""
    settings = {"auto.create.topics.enable": "false", "metrics.listener": f"127.0.0.1:{metrics_port}"}
    process = BrokerProcess(tmp_path_factory.mktemp("broker"), settings)
    process.start()
    yield process.address
    assert process.stop() == 0
    said = process.output.read_text()
    assert "Traceback" not in said, said[said.index("Traceback") - 500 :][:4000]


def records_of(name: str, count: int) -> list[Record]:
    return [Record(b"%s %d" % (name.encode(), number)) for number in range(count)]


def at_the_end_of_a_topic(driver: Driver, topic: str) -> Member:
    """Create the topic, and a member that has read and committed all of it."""
    create(driver, topic)
    driver.produce(topic, records_of("old", OLD))
    member = driver.join("member", topic, topic)
    eventually("all old records", lambda: len(member.state().records), lambda count: count == OLD)
    member.commit()
    return member


def create(driver: Driver, topic: str) -> None:
    driver.admin("create_topic", topic=topic, partitions=1, configs={"retention.ms": "-1"})


def test_a_member_notices_and_begins_again(client: str, topic: str, address: str, new_driver: NewDriver) -> None:
    driver = new_driver(client, address)
    member = at_the_end_of_a_topic(driver, topic)
    driver.admin("delete_topic", topic=topic)
    eventually("no partition left", member.state, lambda state: state.assignment == [])
    create(driver, topic)
    new = records_of("new", NEW)
    driver.produce(topic, new)
    read = eventually("all new records", lambda: member.state().records[OLD:], lambda read: len(read) >= NEW)
    assert [(record.offset, record.value) for record in read] == [(at, new[at].value) for at in range(NEW)]


def test_a_member_does_not_notice_in_time(
    client: str, topic: str, address: str, metrics_port: int, new_driver: NewDriver
) -> None:
    """It continues at an offset beyond the new topic's end, gets OFFSET_OUT_OF_RANGE, and resets its position.

    Only then are new records written. kafka-python sends the epoch that it read last, and Kafka answers with the offset
    where the logs diverge (KIP-595): that is the new topic's end, so records written before the request would be
    skipped.
    """
    driver = new_driver(client, address)
    member = at_the_end_of_a_topic(driver, topic)
    before = resets(metrics_port)
    driver.admin("delete_topic", topic=topic)
    create(driver, topic)
    eventually("the member asks where to go on", lambda: resets(metrics_port), lambda count: count > before)
    new = records_of("new", OLD // 2)
    driver.produce(topic, new)
    read = eventually("all new records", lambda: member.state().records[OLD:], lambda read: len(read) >= len(new))
    assert [(record.offset, record.value) for record in read] == [(at, each.value) for at, each in enumerate(new)]


def resets(metrics_port: int) -> float:
    """How often clients have looked up an offset to reset to."""
    requests, samples = "kafka_network_requestmetrics_requests_total", scrape(metrics_port)
    return sum(samples[requests, (("request", name),)] for name in ("ListOffsets", "OffsetForLeaderEpoch"))


def test_a_producer_goes_on(client: str, topic: str, address: str, new_driver: NewDriver) -> None:
    driver = new_driver(client, address)
    create(driver, topic)
    driver.ask("stream", topic=topic)
    wait_for_more(driver)
    driver.admin("delete_topic", topic=topic)
    create(driver, topic)
    wait_for_more(driver)
    end = driver.ask("stream_state", stop=True)
    assert not end["running"]
    count = driver.admin("list_offset", topic=topic, partition=0, at="latest", timestamp=0)
    numbers = [int(record.value or b"") for record in driver.read(topic, count)]
    assert numbers == sorted(set(numbers)), "doubled, or out of order"
    assert numbers[0] > 0, "what was written before has gone with the topic"
    assert {number for number in end["acknowledged"] if number >= numbers[0]} <= set(numbers)


def wait_for_more(driver: Driver) -> None:
    """Wait until this many more records of the stream are acknowledged."""

    def acknowledged() -> int:
        count: int = driver.ask("stream_state", stop=False)["acknowledged"]
        return count

    goal = acknowledged() + MORE
    eventually("acknowledgements", acknowledged, lambda count: count >= goal)
