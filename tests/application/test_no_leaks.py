"""No test sees anything of another one: in random order they use the same names, and leave all they can."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

MANY = int(os.environ.get("ODRADEK_CLEAN_TESTS", "1000"))
TESTS = """
import random
import time

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

left_over = []


@pytest.mark.parametrize("number", range({count}))
def test_nothing_is_there(kafka, number):
    assert (kafka.topics(), kafka.groups(), kafka.faults(), kafka.requests()) == ([], [], [], [])
    assert abs(kafka.clock.now_ms() - 1000 * time.time()) < 1_800_000
    topic = kafka.create_topic("orders", partitions=1 + number % 3, config={{"retention.ms": 1000 + number}})
    assert (topic.earliest(), topic.latest(), len(kafka.describe_topics()[0]["partitions"])) == (0, 0, 1 + number % 3)
    settings = {{"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0}}
    producer = Producer(settings)
    producer.produce("orders", b"%d" % number, partition=0)
    assert producer.flush(60) == 0
    consumer = Consumer({{**settings, "group.id": "billing", "enable.auto.commit": False}})
    consumer.commit(offsets=[TopicPartition("orders", 0, 1)], asynchronous=False)
    assert [each.value for each in topic.records()] == [b"%d" % number]
    assert kafka.lag("billing") == {{("orders", 0): 0}}
    kafka.fail("Fetch", "UNKNOWN_SERVER_ERROR", times=None, optional=True)
    if number % 5 == 0:
        kafka.clock.advance(hours=number)
    elif number % 5 == 1:
        kafka.clock.freeze()
    # Clients that a test forgot to close: the producer goes on to send to the address that it knows.
    producer.produce("orders", b"left over", partition=0)
    left_over[:] = [producer, consumer]
"""
SHUFFLED = """
import random

import pytest


def pytest_collection_modifyitems(items):
    random.Random({seed}).shuffle(items)
"""
SHARED = """

import odradek


@pytest.fixture(scope="session")
def kafka():
    with odradek.Broker() as broker:
        yield broker
"""


def session(directory: Path, *, count: int, seed: int, plugin: str = "", workers: int = 0) -> str:
    """Run `count` tests in the order that `seed` gives; returns the last line of the session."""
    (directory / "test_user.py").write_text(TESTS.format(count=count), encoding="utf-8")
    (directory / "conftest.py").write_text(SHUFFLED.format(seed=seed) + plugin, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "--tb=short", "-p", "odradek.pytest_plugin"]
    options = ["-p", "no:cacheprovider", *(["-n", str(workers)] if workers else []), "."]
    ran = subprocess.run([*command, *options], cwd=directory, capture_output=True, text=True, timeout=1200, check=False)
    said = ran.stdout.splitlines()
    assert said, ran.stderr
    if " failed" in said[-1] and not plugin:
        pytest.fail(ran.stdout)
    return said[-1]


def test_fifty_tests_see_nothing_of_each_other(tmp_path: Path) -> None:
    assert re.search(r"\b50 passed in", session(tmp_path, count=50, seed=1))


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_many_tests_in_four_processes_see_nothing_of_each_other(tmp_path: Path) -> None:
    assert re.search(rf"\b{MANY} passed in", session(tmp_path, count=MANY, seed=2, workers=4))


def test_the_proof_finds_what_a_shared_broker_keeps(tmp_path: Path) -> None:
    assert re.search(r"\b4 failed, 1 passed in", session(tmp_path, count=5, seed=3, plugin=SHARED))
