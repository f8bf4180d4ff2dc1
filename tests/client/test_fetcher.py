"""A consumer gets fetched records from its position on, without those of aborted transactions."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from client.errors import DisconnectedError
from client.fetcher import Fetcher, TopicPartitionState
from client.settings import ConsumerSettings
from protocol.errors import ApiError, ErrorCode
from protocol.messages.fetch import FetchRequest, FetchResponse
from protocol.records.batch import CompressionType, Record, build_batch
from protocol.records.control_records import ControlRecordType, EndTxnMarker, build_end_txn_marker
from protocol.topic_partition import TopicPartition


def batch(base_offset: int, *values: bytes, producer_id: int = -1, compressed: bool = False) -> bytes:
    """Records from `base_offset` on; transactional if `producer_id` is given."""
    return build_batch(
        [Record(0, 1000, None, value) for value in values],
        base_offset=base_offset,
        producer_id=producer_id,
        producer_epoch=0 if producer_id >= 0 else -1,
        base_sequence=0 if producer_id >= 0 else -1,
        is_transactional=producer_id >= 0,
        compression=CompressionType.GZIP if compressed else CompressionType.NONE,
    )


def marker(offset: int, producer_id: int, kind: ControlRecordType) -> bytes:
    return build_end_txn_marker(
        EndTxnMarker(kind, 0), timestamp=1000, producer_id=producer_id, producer_epoch=0, base_offset=offset
    )


def fetched(*batches: bytes, aborted: list[tuple[int, int]] | None = None) -> FetchResponse.PartitionData:
    transactions = [
        FetchResponse.AbortedTransaction(producer_id=producer, first_offset=offset)
        for producer, offset in aborted or ()
    ]
    return FetchResponse.PartitionData(
        partition_index=0,
        error_code=0,
        high_watermark=1000,
        aborted_transactions=None if aborted is None else transactions,
        records=b"".join(batches),
    )


def state_at(position: int, data: FetchResponse.PartitionData) -> TopicPartitionState:
    state = TopicPartitionState()
    state.seek(position)
    state.fill(data, check_crcs=True)
    return state


def values(records: list[Record]) -> list[bytes | None]:
    return [record.value for record in records]


@pytest.mark.parametrize("compressed", [False, True])
def test_records_begin_with_the_position_and_come_in_portions(compressed: bool) -> None:
    data = fetched(batch(10, b"a", b"b", b"c", compressed=compressed), batch(13, b"d", b"e", compressed=compressed))
    state = state_at(11, data)
    assert values(state.take_records(1)) == [b"b"]
    assert state.position == 12
    assert values(state.take_records(2)) == [b"c", b"d"]
    assert state.has_data
    assert values(state.take_records(10)) == [b"e"]
    assert (state.position, state.has_data) == (15, False)


def test_a_seek_drops_what_is_buffered() -> None:
    state = state_at(0, fetched(batch(0, b"a", b"b")))
    assert values(state.take_records(1)) == [b"a"]
    state.seek(40)
    assert not state.has_data
    assert state.is_fetchable


def test_batches_are_given_whole_but_read_from_the_position() -> None:
    state = state_at(1, fetched(batch(0, b"a", b"b"), batch(2, b"c")))
    taken = state.take_batches()
    assert [values(list(each.records())) for each in taken] == [[b"b"], [b"c"]]
    assert state.position == 3


def test_a_position_behind_compacted_records_goes_on() -> None:
    compacted = build_batch([Record(0, 1000, b"k", b"last")], base_offset=7)
    state = state_at(3, fetched(compacted))
    assert values(state.take_records(10)) == [b"last"]
    assert state.position == 8


def test_a_damaged_batch_is_told_and_not_given() -> None:
    damaged = bytearray(batch(0, b"abc"))
    damaged[-3] ^= 1
    with pytest.raises(ApiError) as error:
        state_at(0, fetched(bytes(damaged)))
    assert error.value.error_code == ErrorCode.CORRUPT_MESSAGE


def test_read_committed_leaves_aborted_transactions_out() -> None:
    data = fetched(
        batch(0, b"plain"),
        batch(1, b"of 7, aborted", producer_id=7),
        batch(2, b"of 8", producer_id=8),
        batch(3, b"of 7, aborted too", producer_id=7),
        marker(4, 7, ControlRecordType.ABORT),
        batch(5, b"of 7, later", producer_id=7),
        marker(6, 8, ControlRecordType.COMMIT),
        batch(7, b"of 9, aborted", producer_id=9),
        marker(8, 7, ControlRecordType.COMMIT),
        aborted=[(9, 7), (7, 1)],
    )
    committed = [b"plain", b"of 8", b"of 7, later"]
    state = state_at(0, data)
    assert values(state.take_records(100)) == committed
    assert state.position == 9, "the position goes behind what is not shown"
    taken = state_at(0, data).take_batches()
    assert [value for each in taken for value in values(list(each.records()))] == committed


def test_read_uncommitted_leaves_markers_out_only() -> None:
    data = fetched(batch(0, b"a", producer_id=7), marker(1, 7, ControlRecordType.ABORT), batch(2, b"b"))
    state = state_at(0, data)
    assert values(state.take_records(100)) == [b"a", b"b"]
    assert state.position == 3


class AbsentBroker:
    """A client whose every request fails."""

    settings = SimpleNamespace(retry_backoff_ms=1, request_timeout_ms=1)

    async def node_connection(self, _leader: int, _purpose: str) -> Any:
        raise DisconnectedError("nobody is there")


class OneLeader:
    """Metadata in which broker 0 leads every partition."""

    current = SimpleNamespace(partition=lambda *_: None, topics={"t": SimpleNamespace(topic_id=None)}, topic_names={})

    def leader_of(self, _partition: TopicPartition) -> Any:
        return SimpleNamespace(leader=0)

    def mark_stale(self) -> None:
        """Do nothing: the metadata never changes."""


class RefusingBroker:
    """A broker that leads no partition any more."""

    def version_of(self, _request: Any, _most: Any) -> int:
        return 12

    async def ask(self, request: FetchRequest, *_: Any) -> FetchResponse:
        """Answer NOT_LEADER_OR_FOLLOWER for every partition."""
        code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        topics = [
            FetchResponse.FetchableTopicResponse(
                topic=each.topic,
                partitions=[
                    FetchResponse.PartitionData(
                        partition_index=asked.partition, error_code=code, high_watermark=-1, records=None
                    )
                    for asked in each.partitions
                ],
            )
            for each in request.topics
        ]
        return FetchResponse(responses=topics)


def fetcher_of(*partitions: TopicPartition) -> Fetcher:
    """A fetcher for the partitions, from their starts."""
    client: Any = AbsentBroker()
    metadata: Any = OneLeader()
    fetcher = Fetcher(client, ConsumerSettings.parse({}), metadata, asyncio.Event())
    fetcher.assign(partitions)
    for partition in partitions:
        fetcher.states[partition].seek(0)
    return fetcher


def test_a_fetch_that_begins_after_the_assignment_has_changed_ends() -> None:
    """Otherwise it would never fetch from that leader again."""

    async def scenario() -> None:
        fetcher = fetcher_of(TopicPartition("t", 0))
        fetcher.start()
        fetcher.assign([])
        (fetch,) = fetcher._fetches.values()
        await fetch
        assert not fetcher._fetches

    asyncio.run(scenario())


def test_a_leader_is_asked_for_all_its_partitions_or_for_none() -> None:
    """Otherwise the buffered partition, soon drained, would have to wait for a fetch without it."""

    async def scenario() -> None:
        first, second = TopicPartition("t", 0), TopicPartition("t", 1)
        for buffered in (first, second):
            fetcher = fetcher_of(first, second)
            fetcher.states[buffered].fill(fetched(batch(0, b"a", b"b")), check_crcs=True)
            fetcher.take_records(1)
            fetcher.start()
            assert not fetcher._fetches
            fetcher.take_records(1)
            fetcher.start()
            assert len(fetcher._fetches) == 1
            await fetcher.close()

    asyncio.run(scenario())


def test_a_leader_that_refuses_is_said_to_be_wrong() -> None:
    async def scenario() -> None:
        refused = []
        fetcher = fetcher_of(partition := TopicPartition("t", 0))

        async def connect(*_: Any) -> Any:
            return RefusingBroker()

        client: Any = SimpleNamespace(
            node_connection=connect, settings=SimpleNamespace(retry_backoff_ms=100, request_timeout_ms=1000)
        )
        metadata: Any = fetcher._metadata
        fetcher._client, metadata.refused = client, refused.append
        fetcher.start()
        await fetcher._fetches[0]
        assert refused == [partition]

    asyncio.run(scenario())
