"""Kafka Streams with exactly_once_v2: every input record is processed exactly once, though the broker and the
application are killed again and again.
"""

from __future__ import annotations

import contextlib
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.compat.driver_process import T0
from tests.compat.exactly_once.program import Program, java_command, java_source
from tests.compat.exactly_once.trial import Feeder, Follower, Found, Record, Trial, committed_records
from tests.compat.steady_load import PARTITIONS, create_topics
from tests.kit.broker_process import BrokerProcess

pytestmark = [pytest.mark.slow, pytest.mark.java, pytest.mark.timeout(900)]

WINDOW_MS = 5_000
CUSTOMERS = 40
APART_MS = 50


def run_application(
    name: str, broker: BrokerProcess, directory: Path, record: Callable[[int], Record], outputs: Callable[[int], int]
) -> tuple[list[Record], list[Found]]:
    """Run it while it is killed, once with its state and once without it; returns the input and the output.

    `outputs` maps a number of inputs to the number of outputs they produce.
    """

    def command(state: str) -> list[str]:
        return java_command(java_source("Streams"), name, broker.address, str(directory / state))

    application = Program(command("state"), directory / f"{name}.log")
    feeder = Feeder(broker.address, record)
    follower = Follower(broker.address, "output")
    trial = Trial(broker, [application], lambda: len(follower.found))
    with contextlib.ExitStack() as stack:
        stack.callback(application.kill)
        application.start()
        for thread in (feeder, follower):
            thread.start()
            stack.callback(thread.stop)
        trial.kill_amid(application.restart, lambda: application.restart(command("new-state")))
        sent = feeder.stop()
        trial.await_progress(outputs(len(sent)))
        application.stop()
        found = committed_records(broker.address, "output")
        follower.stop()
    assert follower.failure is None
    assert sorted(follower.found) == sorted(found)
    return sent, found


def line(number: int) -> Record:
    words = f"every w{number % 7} n{number}"
    return Record("lines", number % PARTITIONS, str(number), words, T0 + number)


def test_a_word_count(broker: BrokerProcess, tmp_path: Path) -> None:
    create_topics(broker.address, {"lines": {}, "output": {}})
    sent, found = run_application("word-count", broker, tmp_path, line, lambda count: 3 * count)
    expected = Counter(word.encode() for record in sent for word in record.value.split())
    counts: dict[bytes | None, list[int]] = defaultdict(list)
    for each in found:
        counts[each.key].append(int(each.value or b""))
    assert set(counts) == set(expected)
    wrong = {word: counts[word] for word, times in expected.items() if counts[word] != list(range(1, times + 1))}
    assert not wrong, list(wrong.items())[:3]
    changelog = {each.key: each.value for each in committed_records(broker.address, "word-count-counts-changelog")}
    assert {word: int.from_bytes(value or b"") for word, value in changelog.items()} == expected


def order_or_payment(number: int) -> Record:
    which, topic = divmod(number, 2)
    customer = which % CUSTOMERS
    name = f"{'op'[topic]}{which}"
    return Record(
        ("orders", "payments")[topic], customer % PARTITIONS, str(customer), name, T0 + which * APART_MS + topic
    )


def pairs(sent: list[Record]) -> Counter[tuple[bytes, bytes]]:
    """The result of a join of orders and payments."""
    payments: dict[str, list[Record]] = defaultdict(list)
    for record in sent:
        if record.topic == "payments":
            payments[record.key].append(record)
    return Counter(
        (order.key.encode(), f"{order.value} {payment.value}".encode())
        for order in sent
        if order.topic == "orders"
        for payment in payments[order.key]
        if abs(order.timestamp_ms - payment.timestamp_ms) <= WINDOW_MS
    )


def test_a_windowed_join(broker: BrokerProcess, tmp_path: Path) -> None:
    create_topics(broker.address, {"orders": {}, "payments": {}, "output": {}})
    sent, found = run_application(
        "windowed-join",
        broker,
        tmp_path,
        order_or_payment,
        lambda count: pairs([order_or_payment(number) for number in range(count)]).total(),
    )
    expected = pairs(sent)
    joined = Counter((each.key or b"", each.value or b"") for each in found)
    assert joined == expected, (list((joined - expected).items())[:3], list((expected - joined).items())[:3])
