"""Segment files that no broker should write, and some that are only rare: dump_log must handle them."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

from crc32c import crc32c

from protocol.messages.group_records import GroupMetadataKey, GroupMetadataValue, OffsetCommitKey, OffsetCommitValue
from protocol.messages.groups import ConsumerProtocolAssignment, ConsumerProtocolSubscription
from protocol.records.batch import CompressionType, Record, RecordBatchBuilder, build_batch
from protocol.wire.schema import encode_versioned
from tests.protocol.record_values import patch, seal, seal_raw

T = 1_700_000_000_000
ZERO = f"{0:020d}"
TXN_KEY = struct.pack(">hh", 0, 2) + b"tx"


def batch(count: int = 2, base_offset: int = 0, **options: int) -> bytes:
    rows = [Record(0, T + at, b"k%d" % at, b"v%d" % at) for at in range(count)]
    return build_batch(rows, base_offset=base_offset, partition_leader_epoch=0, **options)  # type: ignore[arg-type]


def with_gaps() -> bytes:
    builder = RecordBatchBuilder(base_offset=2)
    for offset in (4, 7, 8):
        builder.append(T, b"a", b"b", offset=offset)
    return builder.build()


def control(key: bytes, value: bytes, base_offset: int = 0) -> bytes:
    return build_batch(
        [Record(0, T, key, value)],
        base_offset=base_offset,
        is_control=True,
        is_transactional=True,
        producer_id=3,
        producer_epoch=0,
    )


def pairs(*rows: tuple[bytes | None, bytes | None]) -> bytes:
    return build_batch([Record(0, T, key, value) for key, value in rows])


def logs() -> dict[str, bytes]:
    """Directory of each log -> content."""
    lat = {"log_append_time_ms": T + 99}
    in_between = batch() + b"%s" + batch(2, 5)

    def around(middle: bytes) -> bytes:
        return in_between.replace(b"%s", middle)

    return {
        "empty": b"",
        "torn": batch() + batch(3, 2) + batch(2, 5)[:-5],
        "torn_header": batch() + batch(3, 2)[:16],
        "torn_after_header": batch() + batch(3, 2)[:17],
        "zeros": batch() + bytes(100),
        "garbage": batch() + b"\xff" * 200,
        "magic3": around(patch(batch(3, 2), magic=3)),
        "wrong_crc": around(patch(batch(3, 2), keep_crc=True, max_timestamp=5)),
        "count_too_large": around(patch(batch(3, 2), count=4)),
        "count_huge": around(patch(batch(3, 2), count=2**31 - 1)),
        "count_negative": around(patch(batch(3, 2), count=-1)),
        "bad_record": around(seal(b"\x7f\x00\x01\x02", 3, base_offset=2)),
        "bad_third_record": around(patch(batch(3, 2)[:-1] + b"\x09", length=len(batch(3, 2)) - 12)),
        "bad_gzip": around(seal_raw(b"junk", 3, codec=1, base_offset=2)),
        "codec5": around(patch(batch(3, 2), attributes=5)),
        "log_append_time": batch(**lat) + batch(2, 2, compression=CompressionType.LZ4, **lat),
        "delete_horizon": batch(delete_horizon_ms=T + 500) + batch(2, 2),
        "gaps": batch() + with_gaps() + batch(2, 20) + emptied(30) + batch(1, 40),
        "sequence_wraps": batch(4, producer_id=5, producer_epoch=1, base_sequence=2**31 - 2),
        "control": control(b"\0\0\0\0", b"\0\0\0\0\0\7")
        + control(b"\0\0\0\1", b"\0\0\0\0\0\7", 1)
        + control(b"\0\0\0\x63", b"\0\0\0\0\0\7", 2)
        + control(b"\0\0\0\2", b"\0" * 11, 3),
        "control_value_short": control(b"\0\0\0\1", b"\0\0"),
        "control_key_short": control(b"\0", b"\0\0"),
        "no_keys": build_batch(
            [
                Record(0, T, None, b"v"),
                Record(0, T, b"k", None),
                Record(0, T, None, None),
                Record(0, T, b"", b""),
                Record(0, T, b"k\xff\xfe", "zażółć 🙂".encode(), [("a,b", b"x"), ("", None)]),
            ]
        ),
        "numbers": pairs((b"\0\0\0\5", b"\0" * 7 + b"\7"), (None, b"\0" * 7 + b"\7"), (b"\xff" * 4, b"\xff" * 8)),
        "short_numbers": pairs((b"abc", b"\0\0\0\7")),
    }


def emptied(base_offset: int) -> bytes:
    """The rest of a batch of six that lost all its records to compaction."""
    return patch(batch(1, base_offset)[:61], length=49, count=0, last_offset_delta=5)


def write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def write_logs(root: Path) -> None:
    for directory, content in logs().items():
        write(root / directory / f"{ZERO}.log", content)
    for name in ("00000000000000000007.log", "12.log", "abc.log", "noext", f"{ZERO}.deleted", f"{ZERO}.log.deleted"):
        write(root / name, batch(2, 7))
    write(root / "00000000000000000010-0000000003.checkpoint", batch())
    write(root / f"{ZERO}.checkpoint", batch())


# -- indexes ---------------------------------------------------------------------------------------------------------

Entries = Sequence[tuple[int, int]]


def write_segment(directory: Path, index: Entries | None, times: Entries | None, tail: bytes = b"") -> None:
    """Six batches of two records, 79 bytes each; an index entry is (relative offset, position), a time (ms, offset)."""
    log = b"".join(
        build_batch([Record(0, T + 10 * at + one, b"k", b"v") for one in (0, 1)], base_offset=2 * at) for at in range(6)
    )
    size = len(log) // 6
    index = [(2 * at + 1, at * size) for at in range(1, 6)] if index is None else index
    times = [(T + 10 * at + 1, 2 * at + 1) for at in range(1, 6)] if times is None else times
    write(directory / f"{ZERO}.log", log)
    write(directory / f"{ZERO}.index", b"".join(struct.pack(">ii", *entry) for entry in index) + tail)
    write(directory / f"{ZERO}.timeindex", b"".join(struct.pack(">qi", *entry) for entry in times) + tail)


def write_indexes(root: Path) -> None:
    write_segment(root / "ix_good", None, None)
    write_segment(root / "ix_zeros", None, None, bytes(120))
    write_segment(root / "ix_odd_size", None, None, b"\0\0\0")
    write_segment(root / "ix_empty", [], [])
    write_segment(root / "ix_wrong", [(2, 79), (9, 237)], [(T, 3), (T + 11, 2), (T + 21, 5), (T + 21, 99)])
    write_segment(root / "ix_order", None, [(T + 31, 7), (T + 21, 5), (T + 21, 5)])
    write_segment(root / "ix_times", None, [(T + 12, 3), (T + 500, 5)])
    write_segment(root / "ix_negative", [(3, 79), (0, 0)], [(T + 11, 3), (T - 5, 0)])
    write_segment(root / "ix_below", [(3, 79), (-4, 79)], [])
    write_segment(root / "ix_times_below", None, [(T + 11, 3), (T + 21, -4)])
    write_segment(root / "ix_first", [(0, 0), (3, 79)], [(0, 0), (T + 11, 3)])
    write_segment(root / "ix_beyond", [(3, 100_000)], None)
    write_segment(root / "ix_only_zero", [(0, 0)], [(0, 0)])
    write(root / "ix_no_log" / f"{ZERO}.index", struct.pack(">ii", 3, 0))
    write(root / "ix_no_log" / f"{ZERO}.timeindex", struct.pack(">qi", T, 3))
    base = f"{100:020d}"
    log = batch(2, 100) + batch(2, 102)
    write(root / "ix_base" / f"{base}.log", log)
    write(root / "ix_base" / f"{base}.index", struct.pack(">ii", 3, len(log) // 2))
    write(root / "ix_base" / f"{base}.timeindex", struct.pack(">qi", T + 1, 3))


def write_producer_files(root: Path) -> None:
    entry = struct.Struct(">qhiqiqiq")
    body = struct.pack(">i", 2) + entry.pack(7, 3, -1, -1, 0, T, -1, -1) + entry.pack(8, 1, 5, 100, 2, T + 1, 4, 98)
    good = struct.pack(">hI", 1, crc32c(body)) + body
    for offset, data in enumerate((good, good[:-1], good[:8] + b"\1" + good[9:], b"\0\2" + good[2:], b"")):
        write(root / "producers" / f"{offset:020d}.snapshot", data)
    aborted = struct.Struct(">hqqqq")
    for offset, data in enumerate(
        (
            aborted.pack(0, 5, 1, 2, 3) + aborted.pack(0, 6, 1, 2, 3)[:-4],
            aborted.pack(1, 5, 1, 2, 3) + aborted.pack(0, 6, 1, 2, 3),
            b"",
            aborted.pack(-1, 5, 1, 2, 3),
            aborted.pack(0x100, 5, 1, 2, 3),
        )
    ):
        write(root / "aborted" / f"{offset:020d}.txnindex", data)


# -- damage ----------------------------------------------------------------------------------------------------------


def write_damaged(root: Path) -> list[Path]:
    """A log, its indexes, a snapshot and a transaction index with a flipped bit in each byte in turn, and truncated."""
    first, middle, last = batch(3), batch(2, 3, producer_id=5, producer_epoch=1, base_sequence=7), batch(2, 5)
    entry = struct.Struct(">qhiqiqiq")
    body = struct.pack(">i", 2) + entry.pack(7, 3, -1, -1, 0, T, -1, -1) + entry.pack(8, 1, 5, 100, 2, T + 1, 4, 98)
    log = first + middle + last
    size = len(first)
    contents = {
        "log": (log, range(size, size + len(middle))),
        "index": (struct.pack(">iiii", 4, size, 6, size + len(middle)), range(16)),
        "timeindex": (struct.pack(">qiqi", T + 1, 4, T + 2, 6), range(24)),
        "snapshot": (struct.pack(">hI", 1, crc32c(body)) + body, range(6 + len(body))),
        "txnindex": (struct.pack(">hqqqq", 0, 5, 1, 2, 3) * 2, range(34)),
    }
    paths = []

    def variant(name: str, suffix: str, data: bytes) -> None:
        directory = root / "damaged" / name
        for other, (content, _) in contents.items():
            write(directory / f"{ZERO}.{other}", content)
        write(directory / f"{ZERO}.{suffix}", data)
        paths.append(directory / f"{ZERO}.{suffix}")

    for suffix, (content, positions) in contents.items():
        for at in positions:
            damaged = bytearray(content)
            damaged[at] ^= 1 << (at * 3 % 8)
            variant(f"{suffix}-flipped-{at}", suffix, bytes(damaged))
        for end in range(0, len(content), 5):
            variant(f"{suffix}-cut-{end}", suffix, content[:end])
    return paths


# -- internal topics -------------------------------------------------------------------------------------------------


def group_value(
    version: int, subscription: bytes = b"", assignment: bytes = b"", protocol_type: str = "consumer"
) -> bytes:
    member = GroupMetadataValue.MemberMetadata(
        member_id="m",
        group_instance_id=None,
        client_id="c",
        client_host="/h",
        rebalance_timeout=1,
        session_timeout=2,
        subscription=subscription,
        assignment=assignment,
    )
    value = GroupMetadataValue(
        protocol_type=protocol_type,
        generation=3,
        protocol='p"é\x01\x1b\\u001b\u2028/<',
        leader=None,
        current_state_timestamp=-1,
        members=[member],
    )
    return encode_versioned(value, version)


def group_log() -> bytes:
    key = encode_versioned(GroupMetadataKey(group="g"), 2)
    owned = ConsumerProtocolSubscription.TopicPartition(topic="t", partitions=[1, 2])
    subscription = ConsumerProtocolSubscription(
        topics=["t"], user_data=b"\1\2\3", owned_partitions=[owned], generation_id=4, rack_id="r"
    )
    newest = encode_versioned(subscription, 3)
    oldest = encode_versioned(ConsumerProtocolSubscription(topics=["t"], user_data=None), 0)
    assigned = ConsumerProtocolAssignment.TopicPartition(topic="t", partitions=[0])
    assignment = encode_versioned(ConsumerProtocolAssignment(assigned_partitions=[assigned], user_data=None), 1)
    offset_key = OffsetCommitKey(group="g", topic="t", partition=3)
    offset_value = OffsetCommitValue(
        offset=5, leader_epoch=7, metadata="m\\ \t\n\x7f🙂", commit_timestamp=9, expire_timestamp=11
    )
    return pairs(
        *((key, group_value(version, newest, assignment)) for version in range(5)),
        (key, group_value(3, oldest, b"")),
        (key, group_value(3, b"\0\5" + newest[2:], b"\0")),
        (key, group_value(3, b"xyz", assignment + b"tail", "connect")),
        (key, group_value(3, newest + b"tail", assignment + b"tail")),
        (key, group_value(3) + b"tail"),
        (key + b"tail", None),
        *(
            (encode_versioned(offset_key, key_version), encode_versioned(offset_value, version))
            for key_version in (0, 1)
            for version in range(5)
        ),
        (b"\0", b""),
        (b"", b""),
        (key, b""),
        (key, b"\0"),
        (b"\0\x2a", None),
        (b"\xff\xff", None),
    )


def transaction_value(version: int, state: int, partitions: Sequence[tuple[str, Sequence[int]]] | None) -> bytes:
    out = struct.pack(">hqhib", version, 1, 0, 60000, state)
    out += struct.pack(">i", -1 if partitions is None else len(partitions))
    for topic, ids in partitions or ():
        out += struct.pack(">h", len(topic.encode())) + topic.encode() + struct.pack(f">i{len(ids)}i", len(ids), *ids)
    return out + struct.pack(">qq", T, T - 5)


def write_internal_topics(root: Path) -> None:
    write(root / "offsets" / f"{ZERO}.log", group_log())
    write(root / "offsets_no_key" / f"{ZERO}.log", pairs((None, group_value(3))))
    many = [(f"topic-{letter}", range(5)) for letter in "abcdefgh"]
    states = [(TXN_KEY, transaction_value(0, state, [("t", (0,))] if state else None)) for state in range(8)]
    more = [(TXN_KEY, None), (TXN_KEY, transaction_value(0, 1, [("é-topic", (0, 1_000_000)), *many]))]
    write(root / "transactions" / f"{ZERO}.log", pairs(*states, *more, (struct.pack(">h", 1) + b"xx", b"")))
    for name, key, value in (
        ("state", TXN_KEY, transaction_value(0, 9, [])),
        ("version", TXN_KEY, transaction_value(2, 1, [])),
        ("short", TXN_KEY, transaction_value(0, 1, [])[:-4]),
        ("no_key", None, transaction_value(0, 1, [])),
        ("short_key", TXN_KEY[:-1], transaction_value(0, 1, [])),
        ("empty_with_partitions", TXN_KEY, transaction_value(0, 0, [("t", (0,))])),
    ):
        write(root / f"transactions_{name}" / f"{ZERO}.log", pairs((key, value)))


def write_all(root: Path) -> None:
    """Write all of them below `root`."""
    write_logs(root)
    write_indexes(root)
    write_producer_files(root)
    write_internal_topics(root)
