"""A replica moves from one log directory to the next under load, in a real process that is stopped and killed."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from protocol.errors import ErrorCode
from protocol.messages.log_dirs import (
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from tests.compat.conftest import NewDriver
from tests.compat.driver_process import JAVA_CLIENTS, ClientError, Driver, Record
from tests.compat.raw_load import TOPIC, client_start, connect, count, goes_on, judge, load
from tests.kit.broker_process import BrokerProcess
from tests.kit.waiting import eventually
from tests.kit.wire_client import WireClient
from tests.kit.wire_requests import new_topic

NAMES = ("data", "data-2", "data-3")


KAFKA_PYTHON = """
import sys
from kafka.admin import KafkaAdminClient
admin = KafkaAdminClient(bootstrap_servers=sys.argv[1])
(error,) = admin.alter_replica_log_dirs({(sys.argv[2], 0, 0): sys.argv[3]}).values()
print(error.__name__)
admin.close()
"""


def broker_with_directories(tmp_path: Path, **settings: str) -> BrokerProcess:
    return BrokerProcess(
        tmp_path,
        {
            "log.dirs": ",".join(str(tmp_path / name) for name in NAMES),
            "log.segment.bytes": "200000",
            "log.retention.ms": "-1",
            "log.cleaner.enable": "false",
            **settings,
        },
    )


def move(client: WireClient, path: Path) -> None:
    topic = AlterReplicaLogDirsRequest.AlterReplicaLogDirTopic(name=TOPIC, partitions=[0])
    directory = AlterReplicaLogDirsRequest.AlterReplicaLogDir(path=str(path), topics=[topic])
    response = client.ask(AlterReplicaLogDirsRequest(dirs=[directory]), 2)
    assert isinstance(response, AlterReplicaLogDirsResponse)
    assert response.results[0].partitions[0].error_code == ErrorCode.NONE


def where(client: WireClient) -> dict[str, bool]:
    """The directories with the replica; True for a future one."""
    response = client.ask(DescribeLogDirsRequest(topics=None), 4)
    assert isinstance(response, DescribeLogDirsResponse)
    return {
        Path(result.log_dir).name: partition.is_future_key
        for result in response.results
        for topic in result.topics
        if topic.name == TOPIC
        for partition in topic.partitions
    }


def move_through_a_kill(broker: BrokerProcess, path: Path, after_s: float) -> None:
    """Kill the broker `after_s` seconds into the move, restart it, and wait for the end of the move."""
    with connect(broker) as client:
        move(client, path)
    time.sleep(after_s)
    broker.kill()
    broker.start()
    with connect(broker) as client:
        eventually(f"a move to {path.name}", lambda: where(client) == {path.name: False})


def test_under_load(tmp_path: Path) -> None:
    broker = broker_with_directories(tmp_path)
    broker.start()
    try:
        with connect(broker) as client:
            client.ask(new_topic(TOPIC), 7)
            with load(broker, (10, 300, 3000)) as (senders, reader):
                for name in (*NAMES[1:], *NAMES, NAMES[1]):
                    eventually("a producer that goes on", goes_on(senders))
                    move(client, tmp_path / name)
                    eventually(f"a move to {name}", lambda name=name: where(client) == {name: False})  # type: ignore[misc]
                eventually("a producer that goes on", goes_on(senders))
            assert not any(each.refusals for each in senders)
            assert reader.errors == set()
            assert judge(client, senders, client_start(client)) == count(senders)
    finally:
        broker.kill()
    assert "Traceback" not in broker.output.read_text()


@pytest.mark.parametrize("flush_messages", ["1", "9223372036854775807"])
def test_killed_again_and_again(flush_messages: str, tmp_path: Path) -> None:
    broker = broker_with_directories(tmp_path, **{"log.flush.interval.messages": flush_messages})
    broker.start()
    chance = random.Random(1)
    try:
        with connect(broker) as client:
            client.ask(new_topic(TOPIC), 7)
        with load(broker, (10, 300, 3000)) as (senders, _):
            for number in range(8):
                eventually("a producer that goes on", goes_on(senders))
                name = NAMES[(number + 1) % len(NAMES)]
                move_through_a_kill(broker, tmp_path / name, chance.random() * 0.06)
        with connect(broker) as client:
            assert judge(client, senders, client_start(client)) == count(senders)
        assert broker.stop() == 0
    finally:
        broker.kill()
    left = [path.name for name in NAMES for path in (tmp_path / name).glob(f"{TOPIC}-0*") if path.name != f"{TOPIC}-0"]
    assert all(name.endswith("-delete") for name in left), left
    assert "Traceback" not in broker.output.read_text()


def test_a_client_library_asks_for_it(tmp_path: Path) -> None:
    broker = broker_with_directories(tmp_path)
    broker.start()
    try:
        with connect(broker) as client:
            client.ask(new_topic(TOPIC), 7)
            target = str(tmp_path / NAMES[2])
            done = subprocess.run(
                [sys.executable, "-c", KAFKA_PYTHON, broker.address, TOPIC, target],
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            assert done.stdout == "NoError\n", done.stderr
            eventually("the move", lambda: where(client) == {NAMES[2]: False})
    finally:
        broker.kill()


def place(driver: Driver) -> dict[str, object]:
    """The replica's current and future directories according to Java's Admin."""
    found: dict[str, object] = driver.admin("describe_replica_log_dir", topic=TOPIC)
    return found


@pytest.mark.java
@pytest.mark.parametrize("client", JAVA_CLIENTS)
def test_java_moves_it_while_java_writes_and_reads(client: str, tmp_path: Path, new_driver: NewDriver) -> None:
    broker = broker_with_directories(tmp_path, **{"log.cleaner.enable": "true"})
    broker.start()
    try:
        admin, writer = new_driver(client, broker.address), new_driver(client, broker.address)
        admin.admin("create_topic", topic=TOPIC, partitions=1, configs={"segment.bytes": "200000"})
        writer.ask("stream", topic=TOPIC)
        admin.ask("follow", topic=TOPIC)
        with pytest.raises(ClientError) as raised:
            admin.admin("alter_replica_log_dir", topic=TOPIC, path="/elsewhere")
        assert raised.value.error is ErrorCode.LOG_DIR_NOT_FOUND
        for name in (*NAMES[1:], *NAMES, NAMES[1]):
            before = writer.ask("stream_state", stop=False)["acknowledged"]
            target = str(tmp_path / name)
            admin.admin("alter_replica_log_dir", topic=TOPIC, path=target)
            here = {"current": target, "current_lag": 0, "future": None, "future_lag": -1}
            eventually(f"a move to {name}", lambda: place(admin), lambda found, here=here: found == here)  # type: ignore[misc]
            eventually(
                "more records, and readers of them",
                lambda: admin.ask("follow_state")["next"],
                lambda count, before=before: count > before + 500,  # type: ignore[misc]
            )
        end = writer.ask("stream_state", stop=True)
        assert (end["running"], end["failures"]) == (False, [])
        assert sorted(end["acknowledged"]) == list(range(end["sent"]))
        read = eventually(
            "all records",
            lambda: admin.ask("follow_state"),
            lambda state: state["failure"] or state["next"] == end["sent"],
        )
        assert read == {"next": end["sent"], "failure": None}
    finally:
        broker.kill()
    assert "Traceback" not in broker.output.read_text()


@pytest.mark.java
@pytest.mark.parametrize("client", JAVA_CLIENTS)
def test_java_sees_a_move_that_waits(client: str, tmp_path: Path, new_driver: NewDriver) -> None:
    broker = broker_with_directories(tmp_path)
    broker.start()
    try:
        driver = new_driver(client, broker.address)
        driver.admin("create_topic", topic=TOPIC, partitions=1, configs={})
        driver.produce(TOPIC, [Record(b"x" * 1000) for _ in range(20)])
        limit = "replica.alter.log.dirs.io.max.bytes.per.second"
        driver.admin("alter_broker_config", broker="0", key=limit, value="0")
        paths = [str(tmp_path / name) for name in NAMES]
        driver.admin("alter_replica_log_dir", topic=TOPIC, path=paths[1])
        waiting = {"current": paths[0], "current_lag": 0, "future": paths[1], "future_lag": 20}
        assert place(driver) == waiting
        driver.admin("alter_broker_config", broker="0", key=limit, value="1000000")
        there = {"current": paths[1], "current_lag": 0, "future": None, "future_lag": -1}
        eventually("the move", lambda: place(driver), lambda found: found == there)
    finally:
        broker.kill()
