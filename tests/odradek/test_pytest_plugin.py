"""The pytest plug-in, in sessions of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TESTS = """
import pytest

seen = []

@pytest.mark.parametrize("number", range({count}))
def test_a_new_broker_for_each_test(kafka, number):
    assert kafka.topics() == []
    assert kafka.bootstrap_servers not in seen
    seen.append(kafka.bootstrap_servers)
    kafka.create_topic("t").produce(["AA-1"])
    assert len(kafka.records("t")) == 1

@pytest.mark.odradek(config={{"auto.create.topics.enable": "false", "num.partitions": 3}})
def test_a_configuration(kafka):
    kafka.create_topic("t", partitions=-1)
    assert len(kafka.describe_topics()[0]["partitions"]) == 3
"""


CLUSTER = """
import pytest

seen = []

@pytest.mark.odradek(brokers=3)
@pytest.mark.parametrize("number", range(2))
def test_a_new_cluster_for_each_test(kafka, akafka, number):
    assert kafka.topics() == []
    assert kafka.brokers == akafka.brokers == [1, 2, 3]
    assert not set(kafka.bootstrap_servers.split(",")) & set(seen)
    seen.extend(kafka.bootstrap_servers.split(","))
    kafka.create_topic("t").produce(["AA-1"])
    kafka.kill(kafka.await_leader("t"))

@pytest.mark.odradek(brokers=3)
def test_a_fault_that_hit_nothing(kafka):
    kafka.broker(2).fail("Produce", "INVALID_RECORD", topic="t")
"""


KEPT = """
import pytest

addresses = set()

@pytest.mark.odradek(keep_address=True)
@pytest.mark.parametrize("number", range(3))
def test_a_new_broker_at_the_same_address(kafka, number):
    assert kafka.topics() == []
    addresses.add(kafka.bootstrap_servers)
    assert len(addresses) == 1
    kafka.create_topic("t")

@pytest.mark.odradek(keep_address=True, brokers=3)
def test_a_cluster(kafka):
    pass
"""


def session(directory: Path, tests: str) -> subprocess.CompletedProcess[str]:
    """Run these tests in a session of pytest."""
    (directory / "test_user.py").write_text(tests, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "odradek.pytest_plugin", "-p", "no:cacheprovider", "."]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=100, check=False)


def test_each_test_gets_a_new_broker(tmp_path: Path) -> None:
    ran = session(tmp_path, TESTS.format(count=30))
    assert ran.returncode == 0, ran.stdout
    assert "31 passed" in ran.stdout


def test_each_test_gets_a_new_cluster(tmp_path: Path) -> None:
    ran = session(tmp_path, CLUSTER)
    assert "1 failed, 2 passed" in ran.stdout, ran.stdout
    assert "hit nothing; no request of this API came" in ran.stdout
    assert "broker 3:" in ran.stdout


def test_each_test_gets_a_new_broker_at_the_same_address(tmp_path: Path) -> None:
    ran = session(tmp_path, KEPT)
    assert "3 passed, 1 error" in ran.stdout, ran.stdout
    assert "keep_address works for one broker, not for a cluster" in ran.stdout


@pytest.mark.parametrize(
    ("mark", "message"),
    [
        ("config={'num.io.threads': 'many'}", "num.io.threads"),
        ("brokerz=3", "the mark odradek takes config, brokers, tls, sasl and keep_address, not brokerz"),
    ],
)
def test_a_wrong_mark_fails_its_test(mark: str, message: str, tmp_path: Path) -> None:
    ran = session(tmp_path, f"import pytest\n@pytest.mark.odradek({mark})\ndef test_it(kafka): pass\n")
    assert ran.returncode == 1
    assert message in ran.stdout


def test_a_fault_that_hit_nothing_fails_its_test(tmp_path: Path) -> None:
    ran = session(
        tmp_path,
        """
def test_unused(kafka):
    kafka.fail("Produce", "INVALID_RECORD", topic="orders")

def test_optional(kafka):
    kafka.fail("Produce", "INVALID_RECORD", topic="orders", optional=True)
    assert len(kafka.faults()) == 1
""",
    )
    assert "1 failed, 1 passed" in ran.stdout
    assert (
        "'error INVALID_RECORD' for Produce {'topic': 'orders'} hit nothing; no request of this API came" in ran.stdout
    )


def test_a_failed_test_shows_what_the_broker_saw(tmp_path: Path) -> None:
    ran = session(
        tmp_path,
        """
from confluent_kafka.admin import AdminClient

def test_it(kafka):
    AdminClient({"bootstrap.servers": kafka.bootstrap_servers, "client.id": "shop"}).list_topics(timeout=60)
    assert kafka.topics() == ["orders"]
""",
    )
    assert ran.returncode == 1
    assert "last requests:" in ran.stdout
    assert "Metadata v12 shop: ok" in ran.stdout
