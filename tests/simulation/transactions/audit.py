"""Reads everything that transactions have left, after healing."""

from __future__ import annotations

import asyncio
from typing import Final

from client import admin
from client.consumer import Consumer
from client.kafka_client import KafkaClient
from client.settings import ConsumerSettings
from protocol.errors import ApiError, ErrorCode
from protocol.messages.fetch import FetchRequest, FetchResponse
from protocol.records.batch import read_batches
from protocol.topic_partition import TopicPartition
from tests.simulation import history
from tests.simulation.transactions.workload import PREFIX, Workload

READ_COMMITTED: Final = 1
_STABLE_WITHIN_S: Final = 55.0
"""Longer than the longest transaction timeout plus the interval at which brokers check it."""


async def find_ends(workload: Workload, client: KafkaClient, _reader: str) -> None:
    """Wait until no transaction is open in the logs, and pass their ends to the workload."""
    while True:
        stable = await _ends(workload, client, READ_COMMITTED)
        if stable == await _ends(workload, client, 0):
            break
        await asyncio.sleep(0.2)
    workload.ends.update(stable)


async def read_transactions(workload: Workload, client: KafkaClient, reader: str) -> None:
    """Read all records, all markers, and all committed values. Raises ApiError and ClientError."""
    clients = workload.clients
    deadline = clients.now_s + _STABLE_WITHIN_S
    while True:
        stable, ends = await _ends(workload, client, READ_COMMITTED), await _ends(workload, client, 0)
        if stable == ends or clients.now_s > deadline:
            break
        await asyncio.sleep(0.2)
    committed = await _committed(workload, client, reader, stable)
    for partition, end in ends.items():
        records, markers = await client.retry("fetch", lambda each=partition, end=end: _all(client, each, end))  # type: ignore[misc]
        log = clients.log_of(partition)
        clients.feed(history.FinalRead(clients.now_s, log, 0, end, tuple(records), tuple(markers)))
        final = tuple(committed[partition])
        clients.feed(history.FinalCommittedRead(clients.now_s, log, stable[partition], end, final))
    inputs, outputs = (tuple(map(clients.log_of, each)) for each in (workload.inputs, workload.outputs))
    clients.feed(history.TransactionsOver(clients.now_s))
    clients.feed(history.LoopOver(clients.now_s, inputs, outputs, PREFIX))
    workload.was_read = True


async def _ends(workload: Workload, client: KafkaClient, isolation_level: int) -> dict[TopicPartition, int]:
    wanted = dict.fromkeys(workload.partitions, admin.LATEST_TIMESTAMP)
    ends = {}
    for partition, found in (await admin.list_offsets(client, wanted, isolation_level=isolation_level)).items():
        if isinstance(found, ApiError):
            raise found
        ends[partition] = found.offset
    return ends


async def _committed(
    workload: Workload, client: KafkaClient, reader: str, stable: dict[TopicPartition, int]
) -> dict[TopicPartition, list[tuple[int, bytes]]]:
    """The records that a consumer sees below the last stable offsets."""
    consumer = Consumer(client, ConsumerSettings.parse({"isolation.level": "read_committed"}))
    consumer.assign(workload.partitions)
    found: dict[TopicPartition, list[tuple[int, bytes]]] = {each: [] for each in workload.partitions}
    for partition in workload.partitions:
        consumer.seek(partition, 0)
    while any((consumer.position(each) or 0) < end for each, end in stable.items()):
        for partition, records in (await workload.clients.poll(consumer, reader, "transactions-auditor")).items():
            found[partition] += [(record.offset, bytes(record.value)) for record in records]
    await consumer.close()
    return found


async def _all(client: KafkaClient, at: TopicPartition, end: int) -> tuple[list[tuple[int, bytes]], list[int]]:
    """All records of a partition below `end` and the offsets of its markers. Raises ApiError, DisconnectedError.

    There may be more by now: a transaction that wrote nothing here leaves its marker when it times out.
    """
    known = (await client.fetch_metadata([at.topic])).partition(*at)
    if known is None or known.leader < 0:
        raise ApiError(ErrorCode.LEADER_NOT_AVAILABLE, str(at))
    connection = await client.node_connection(known.leader, "fetch")
    records: list[tuple[int, bytes]] = []
    markers: list[int] = []
    offset = 0
    while offset < end:
        partition = FetchRequest.FetchPartition(
            partition=at.partition, fetch_offset=offset, partition_max_bytes=1_000_000, current_leader_epoch=-1
        )
        topic = FetchRequest.FetchTopic(topic=at.topic, partitions=[partition])
        request = FetchRequest(max_wait_ms=500, min_bytes=1, max_bytes=1_000_000, topics=[topic])
        data = (await connection.ask(request, FetchResponse, 11)).responses[0].partitions[0]
        if data.error_code:
            raise ApiError(ErrorCode.of(data.error_code), str(at))
        for batch in read_batches(memoryview(data.records or b"")):
            offset = batch.next_offset
            if batch.base_offset >= end:
                break
            if batch.is_control:
                markers.append(batch.base_offset)
            else:
                records += [(record.offset, bytes(record.value or b"")) for record in batch.records()]
    return records, markers
