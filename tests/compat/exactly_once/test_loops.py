"""Loops that consume, transform and produce in transactions: their output matches the input, once and in order, though
the broker and the loops are killed again and again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.compat.driver_process import T0
from tests.compat.exactly_once.program import Program, java_command, java_source, python_command
from tests.compat.exactly_once.trial import Feeder, Follower, Record, Trial, committed_records
from tests.compat.steady_load import PARTITIONS, create_topics
from tests.kit.broker_process import BrokerProcess
from tests.kit.jars import newest_clients_classpath

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

LOOPS = "tests.compat.exactly_once.loops"


def java_loop(*arguments: str) -> list[str]:
    return java_command(java_source("Transform"), *arguments)


def newest_java_loop(*arguments: str) -> list[str]:
    return java_command(java_source("Transform"), *arguments, classpath=newest_clients_classpath())


def confluent_loop(*arguments: str) -> list[str]:
    return python_command(f"{LOOPS}.confluent_loop", *arguments)


def aiokafka_loop(*arguments: str) -> list[str]:
    return python_command(f"{LOOPS}.aiokafka_loop", *arguments)


def record(number: int) -> Record:
    return Record("input", number % PARTITIONS, str(number), f"value {number}", T0 + number)


@pytest.mark.parametrize(
    ("command", "count"),
    [
        pytest.param(confluent_loop, 2, id="confluent-kafka"),
        pytest.param(aiokafka_loop, 1, id="aiokafka"),
        pytest.param(java_loop, 2, id="java-3.9", marks=pytest.mark.java),
        pytest.param(newest_java_loop, 2, id="java-4", marks=pytest.mark.java),
    ],
)
def test_a_loop(broker: BrokerProcess, tmp_path: Path, command: Callable[..., list[str]], count: int) -> None:
    """`count` processes of one group share the partitions; one of them is killed, and later its replacement."""
    create_topics(broker.address, {"input": {}, "output": {}})
    loops = [
        Program(command(broker.address, f"loop-{number}"), tmp_path / f"loop-{number}.log") for number in range(count)
    ]
    feeder = Feeder(broker.address, record)
    follower = Follower(broker.address, "output")
    trial = Trial(broker, loops, lambda: len(follower.found))
    with contextlib.ExitStack() as stack:
        for loop in loops:
            stack.callback(loop.kill)
            loop.start()
        for thread in (feeder, follower):
            thread.start()
            stack.callback(thread.stop)
        trial.kill_amid(loops[0].restart, loops[-1].restart)
        sent = feeder.stop()
        trial.await_progress(len(sent))
        for loop in loops:
            loop.kill()
        found = committed_records(broker.address, "output")
        follower.stop()
    assert follower.failure is None
    assert sorted(follower.found) == sorted(found)
    for partition in range(PARTITIONS):
        values = [each.value for each in found if each.partition == partition]
        assert values == [each.value.upper().encode() for each in sent if each.partition == partition]
