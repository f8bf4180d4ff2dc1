"""A replica of a partition: what readers see, what producers are acknowledged, and what followers truncate."""

from __future__ import annotations

import pytest

from cluster.metadata_image import PartitionImage
from cluster.replication.partition import ACKS_ALL, Partition
from cluster.replication.reads import FetchParams, IsolationLevel
from protocol.errors import ApiError, ErrorCode
from protocol.uuids import ZERO_UUID
from storage.log_config import LogConfig
from tests.storage.support import T0, TP, batch_of, new_log

IMAGE = PartitionImage(
    partition=0, leader=1, leader_epoch=3, replicas=(1,), isr=(1,), partition_epoch=0, controller_epoch=1
)
CONSUMER = FetchParams(IsolationLevel.READ_UNCOMMITTED, reads_zstd=True, max_wait_ms=0, min_bytes=1, max_bytes=1 << 20)


def leader(config: LogConfig | None = None) -> Partition:
    """A leader with an empty log."""
    partition = Partition(TP, new_log(config), 0, IMAGE)
    partition.become_leader(IMAGE)
    return partition


def append(partition: Partition, *values: bytes, acks: int = ACKS_ALL) -> bool:
    """Append one batch; returns whether it is acknowledged."""
    return partition.append_as_leader(batch_of(*values), required_acks=acks, now_ms=T0).is_acknowledged


def read_size(partition: Partition, offset: int, **options: int) -> int:
    """The number of bytes that a consumer gets from `offset` on."""
    return partition.read(CONSUMER, offset, 1 << 20, min_one_message=True, topic_id=ZERO_UUID, **options).size


def test_acks_all_is_acknowledged_by_the_high_watermark_and_the_others_by_the_flush_limit() -> None:
    partition = leader(LogConfig(flush_messages=2))
    assert append(partition, b"a")
    assert not append(partition, b"b")
    assert not append(partition, b"c", acks=1)
    assert partition.high_watermark == 1
    assert not partition.is_acknowledged(1, ACKS_ALL)
    partition.log.flush(T0)
    assert partition.is_acknowledged(1, 1), "its own disk is all that acks=1 waits for"
    assert not partition.is_acknowledged(1, ACKS_ALL), "nobody has moved the high watermark"
    assert partition.advance_high_watermark()
    assert partition.is_acknowledged(2, ACKS_ALL)


def test_who_waits_for_a_leader_that_resigned_is_refused() -> None:
    partition = leader(LogConfig(flush_messages=1))
    append(partition, b"a")
    partition.resign(IMAGE.replace(leader=2, leader_epoch=4))
    with pytest.raises(ApiError) as refused:
        partition.is_acknowledged(0, ACKS_ALL)
    assert refused.value.error_code is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_reader_sees_what_is_below_the_high_watermark() -> None:
    partition = leader(LogConfig(flush_messages=2))
    for value in (b"a", b"b"):
        append(partition, value)
    one = len(batch_of(b"a"))
    assert read_size(partition, 0) == one
    assert read_size(partition, 1) == 0
    partition.log.flush(T0)
    partition.advance_high_watermark()
    assert read_size(partition, 0) == 2 * one


@pytest.mark.parametrize(
    ("epoch", "error"), [(2, ErrorCode.FENCED_LEADER_EPOCH), (4, ErrorCode.UNKNOWN_LEADER_EPOCH), (3, None)]
)
def test_the_leader_epoch_of_a_reader_is_checked(epoch: int, error: ErrorCode | None) -> None:
    partition = leader()
    append(partition, b"a")
    if error is None:
        assert read_size(partition, 0, current_leader_epoch=epoch)
        return
    with pytest.raises(ApiError) as refused:
        read_size(partition, 0, current_leader_epoch=epoch)
    assert refused.value.error_code is error


def test_a_reader_whose_log_has_split_is_told_where() -> None:
    partition = leader()
    append(partition, b"a", b"b")
    partition.become_leader(IMAGE.replace(leader_epoch=7))
    append(partition, b"c")
    info = partition.read(CONSUMER, 9, 1000, min_one_message=True, topic_id=ZERO_UUID, last_fetched_epoch=5)
    assert info.diverging_epoch == (3, 2)
    assert info.records is None
    info = partition.read(CONSUMER, 2, 1000, min_one_message=True, topic_id=ZERO_UUID, last_fetched_epoch=3)
    assert info.diverging_epoch is None
    assert info.size == len(batch_of(b"c"))


def test_a_follower_cuts_its_log_and_its_high_watermark_follows() -> None:
    partition = leader()
    for value in (b"a", b"b"):
        append(partition, value, value)
    with pytest.raises(ApiError) as refused:
        partition.begin_truncation(2, T0)
    assert refused.value.error_code is ErrorCode.INVALID_REQUEST
    partition.resign(IMAGE.replace(leader=2, leader_epoch=4))
    task = partition.begin_truncation(3, T0)
    assert partition.high_watermark == 3
    task.run()
    partition.end_truncation(task)
    # The batch with the offsets 2 and 3 cannot be split.
    assert (partition.log.log_end_offset, partition.high_watermark) == (2, 2)
