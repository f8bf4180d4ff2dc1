"""kafka-replica-verification: replicas that are equal, that lag, and that differ."""

from __future__ import annotations

import asyncio
import contextlib
import re

import pytest

from client import admin
from client.kafka_client import KafkaClient
from client.producer import Producer
from client.settings import ClientSettings, ProducerSettings
from protocol.records.batch import RecordBatch, build_values_batch
from protocol.topic_partition import TopicPartition
from tests.kit.in_process_cluster import InProcessCluster
from tests.kit.waiting import eventually_async
from tools import replica_verification
from tools.replica_verification import Fetched, ReplicaBuffer, UnequalReplicasError, VerificationLag
from tools.support.common import ToolError

T0, U0 = TopicPartition("t", 0), TopicPartition("u", 0)


def batches(*values: bytes, at: int = 0) -> list[RecordBatch]:
    """One batch of each value."""
    return [
        RecordBatch(memoryview(build_values_batch([each], 0, base_offset=offset)))
        for offset, each in enumerate(values, at)
    ]


def test_equal_batches_below_all_high_watermarks_are_checked() -> None:
    buffer = ReplicaBuffer({T0: (1, 2), U0: (2, 1)}, {T0: 0, U0: 5})
    buffer.add(T0, 1, Fetched(3, batches(b"a", b"b", b"c")))
    buffer.add(T0, 2, Fetched(2, batches(b"a", b"b", b"other")))
    assert buffer.verify() == VerificationLag(1, T0, 2), (
        "broker 1 of u-0 did not answer, so that its high watermark is not known"
    )
    assert buffer.offsets == {T0: 2, U0: 5}
    assert buffer.verify().partition == T0, "nothing is left of the first round"


def test_a_checksum_that_differs_is_printed_and_the_check_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    buffer = ReplicaBuffer({T0: (1, 2)}, {T0: 0})
    buffer.add(T0, 1, Fetched(3, batches(b"a", b"b", b"c")))
    buffer.add(T0, 2, Fetched(3, batches(b"a", b"x", b"c")))
    assert buffer.verify() == VerificationLag(0, T0, 3)
    found = re.fullmatch(
        r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}: partition t-0 has unmatched checksum at offset 1; "
        r"replica 1's checksum (\d+); replica 2's checksum (\d+)\n",
        capsys.readouterr().out,
    )
    assert found is not None
    assert found[1] != found[2]


def test_offsets_that_differ_end_the_check() -> None:
    buffer = ReplicaBuffer({T0: (1, 2)}, {T0: 0})
    buffer.add(T0, 1, Fetched(9, batches(b"a")))
    buffer.add(T0, 2, Fetched(9, batches(b"a", at=1)))
    with pytest.raises(
        UnequalReplicasError, match=r"partition t-0: replica 1's offset 0 doesn't match replica 2's offset 1"
    ):
        buffer.verify()


def test_the_replicas_of_a_cluster_are_alike(capsys: pytest.CaptureFixture[str]) -> None:
    said: list[str] = []

    def heard() -> str:
        said.append(capsys.readouterr().out)
        return "".join(said)

    async def run() -> None:
        async with InProcessCluster(2) as cluster:
            settings = {"bootstrap.servers": cluster.bootstrap_servers}
            async with KafkaClient(ClientSettings.parse(settings)) as client:
                await admin.create_topic(client, "t", partitions=1, replication_factor=2)
                async with Producer(client, ProducerSettings.parse({**settings, "acks": "all"}), lambda: 5) as producer:
                    for value in range(3):
                        await (await producer.send("t", b"%d" % value, partition=0))
            options = replica_verification.PARSER.parse(
                [
                    *("--broker-list", cluster.bootstrap_servers, "--time", "-2", "--report-interval-ms", "0"),
                    *("--topics-include", "t", "--max-wait-ms", "10"),
                ]
            )
            check = asyncio.create_task(replica_verification.work(options))

            async def has_checked_all() -> bool:
                return check.done() or "max lag is 0 for partition t-0 at offset 3 among 1 partitions" in heard()

            await eventually_async("both replicas are checked", has_checked_all)
            assert "verification process is started" in heard()
            check.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await check

    asyncio.run(run())
    assert "checksum" not in "".join(said)


def test_without_topics_there_is_nothing_to_check() -> None:
    async def run() -> None:
        async with InProcessCluster(1) as cluster:
            arguments = ["--broker-list", cluster.bootstrap_servers, "--topics-include", "nope"]
            with pytest.raises(ToolError, match="No topics found"):
                await replica_verification.work(replica_verification.PARSER.parse(arguments))

    asyncio.run(run())
