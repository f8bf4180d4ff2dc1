"""The parts of a log alone: indexes, leader epochs, producer state."""

from __future__ import annotations

import struct

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.errors import ApiError, ErrorCode
from protocol.records.batch import RecordBatch, RecordBatchBuilder
from storage.log.leader_epoch import EpochEntry, LeaderEpochFileCache
from storage.log.log_validator import AppendOrigin
from storage.log.producer_state import (
    BatchMetadata,
    CorruptSnapshotError,
    ProducerStateEntry,
    ProducerStateManager,
    decode_snapshot,
    encode_snapshot,
)
from storage.segment.indexes import OffsetIndex, OffsetPosition, TimeIndex, TimestampOffset
from tests.kit.memory_file_system import MemoryFileSystem
from tests.storage.support import T0, batch_of

CLIENT = AppendOrigin.CLIENT


def disk() -> MemoryFileSystem:
    file_system = MemoryFileSystem()
    file_system.make_dir("/d")
    return file_system


steps = st.lists(st.tuples(st.integers(1, 50), st.integers(1, 5000)), max_size=600)


class TestOffsetIndex:
    @settings(max_examples=50, deadline=None)
    @given(steps, st.booleans(), st.integers(0, 20_000), st.integers(0, 2_000_000))
    def test_look_ups(self, deltas: list[tuple[int, int]], write: bool, offset: int, position: int) -> None:
        base = 1000
        index = OffsetIndex(disk(), "/d/i", base)
        entries = [OffsetPosition(base, 0)]
        for step, length in deltas:
            entries.append(OffsetPosition(entries[-1].offset + step, entries[-1].position + length))
            index.append(*entries[-1])
        if write:
            index.write_held()
        for may_wait in (True, False):
            target = base + offset
            assert index.lookup(target, may_wait=may_wait) == [e for e in entries if e.offset <= target][-1]
            assert (
                index.lookup_position(position, may_wait=may_wait) == [e for e in entries if e.position <= position][-1]
            )
        assert index.last() == entries[-1]
        assert len(index) == len(deltas)
        index.truncate_to(target)
        left = [entry for entry in entries[1:] if entry.offset < target]
        assert [index.entry(at) for at in range(len(index))] == left

    def test_format_is_kafkas(self) -> None:
        file_system = disk()
        index = OffsetIndex(file_system, "/d/i", 100)
        index.append(105, 4096)
        index.append(300, 9000)
        index.write_held()
        assert file_system.read_file("/d/i") == struct.pack(">iiii", 5, 4096, 200, 9000)
        again = OffsetIndex(file_system, "/d/i", 100)
        assert again.last() == (300, 9000)

    @pytest.mark.parametrize("entries", [0, 1, 2, 7, 300])
    def test_tail_of_zeros(self, entries: int) -> None:
        file_system = disk()
        content = b"".join(struct.pack(">ii", at + 1, at * 10 + 10) for at in range(entries))
        file_system.write_file("/d/i", content + bytes(10 * 1024 * 1024 // 8 * 8 - len(content)))
        index = OffsetIndex(file_system, "/d/i", 0)
        assert len(index) == entries
        index.append(entries + 5, 100_000)
        index.write_held()
        assert len(file_system.read_file("/d/i")) == (entries + 1) * 8


class TestTimeIndex:
    def test_only_growing_timestamps(self) -> None:
        file_system = disk()
        index = TimeIndex(file_system, "/d/t", 50)
        assert index.last() == TimestampOffset(-1, 50)
        for timestamp, offset in ((-1, 51), (T0, 52), (T0, 60), (T0 - 5, 61), (T0 + 7, 70)):
            index.maybe_append(timestamp, offset)
        index.write_held()
        assert file_system.read_file("/d/t") == struct.pack(">qiqi", T0, 2, T0 + 7, 20)
        assert index.lookup(T0 - 1) == (-1, 50)
        assert index.lookup(T0 + 6) == (T0, 52)
        assert index.lookup(T0 + 7) == (T0 + 7, 70)
        index.truncate_to(70)
        assert [index.entry(at) for at in range(len(index))] == [(T0, 52)]
        assert index.is_sound()

    def test_sanity(self) -> None:
        file_system = disk()
        file_system.write_file("/d/t", struct.pack(">qiqi", T0, 5, T0 - 1, 6))
        assert not TimeIndex(file_system, "/d/t", 0).is_sound()


class TestLeaderEpochs:
    def cache(self, *entries: tuple[int, int]) -> LeaderEpochFileCache:
        cache = LeaderEpochFileCache(disk(), "/d/leader-epoch-checkpoint")
        for epoch, offset in entries:
            cache.assign(epoch, offset)
        return cache

    def test_what_is_contradicted_goes(self) -> None:
        cache = self.cache((1, 0), (2, 10), (3, 20))
        cache.assign(4, 20)
        assert cache.entries == [(1, 0), (2, 10), (4, 20)]
        cache.assign(5, 5)
        assert cache.entries == [(1, 0), (5, 5)]
        cache.assign(3, 30)
        assert cache.entries == [(1, 0), (3, 30)]
        cache.assign(3, 40)
        assert cache.entries == [(1, 0), (3, 30)]
        cache.assign(3, 25)
        assert cache.entries == [(1, 0), (3, 25)]

    def test_end_offsets(self) -> None:
        cache = self.cache((2, 5), (4, 10), (7, 30))
        expected = {
            -1: (-1, -1),
            0: (0, 5),
            1: (1, 5),
            2: (2, 10),
            3: (2, 10),
            4: (4, 30),
            6: (4, 30),
            7: (7, 99),
            8: (-1, -1),
        }
        assert {epoch: cache.end_offset_for(epoch, 99) for epoch in expected} == expected
        assert self.cache().end_offset_for(0, 99) == (-1, -1)

    def test_epoch_of_an_offset(self) -> None:
        cache = self.cache((2, 5), (4, 10))
        assert [cache.epoch_for_offset(offset) for offset in (4, 5, 9, 10, 99)] == [-1, 2, 2, 4, 4]

    def test_truncation(self) -> None:
        cache = self.cache((2, 5), (4, 10), (7, 30))
        cache.truncate_from_end(30)
        assert cache.entries == [(2, 5), (4, 10)]
        cache.truncate_from_start(12)
        assert cache.entries == [(4, 12)]
        cache.truncate_from_start(12)
        assert cache.entries == [(4, 12)]
        cache.truncate_from_end(12)
        assert (cache.entries, cache.latest_epoch) == ([], -1)

    def test_file(self) -> None:
        file_system = disk()
        cache = LeaderEpochFileCache(file_system, "/d/e")
        cache.assign(3, 7)
        cache.assign(5, 9)
        cache.write_if_changed()
        assert file_system.read_file("/d/e") == b"0\n2\n3 7\n5 9\n"
        assert cache.take_unsynced() == "/d/e"
        assert cache.take_unsynced() is None
        assert LeaderEpochFileCache.load(file_system, "/d/e", list).entries == [(3, 7), (5, 9)]
        file_system.write_file("/d/e", b"0\n2\n5 7\n3 9\n")
        rebuilt = LeaderEpochFileCache.load(file_system, "/d/e", lambda: [EpochEntry(1, 0), EpochEntry(2, 4)])
        assert rebuilt.entries == [(1, 0), (2, 4)]
        rebuilt.write_if_changed()
        assert file_system.read_file("/d/e") == b"0\n2\n1 0\n2 4\n"


def produced(sequence: int, count: int = 1, producer_id: int = 4, epoch: int = 0) -> RecordBatch:
    return RecordBatch(batch_of(*[b"v"] * count, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence))


class TestProducerState:
    def manager(self, file_system: MemoryFileSystem | None = None, *snapshots: int) -> ProducerStateManager:
        return ProducerStateManager(file_system or disk(), "/d", "t-0", snapshots)

    def test_wraps_at_the_largest_sequence(self) -> None:
        manager = self.manager()
        last = 2**31 - 1
        manager.update(produced(last - 1, 2), 0, T0)
        assert manager.entries[4].last_sequence == last
        assert manager.check(produced(0), 2, CLIENT) is None
        with pytest.raises(ApiError):
            manager.check(produced(1), 2, CLIENT)
        manager = self.manager()
        manager.update(produced(last, 3), 0, T0)
        assert manager.entries[4].last_sequence == 1
        duplicate = manager.check(produced(last, 3), 3, CLIENT)
        assert duplicate is not None
        assert (duplicate.first_offset, duplicate.last_offset, duplicate.first_sequence) == (0, 2, last)
        assert manager.check(produced(2), 3, CLIENT) is None

    def test_window_of_five(self) -> None:
        manager = self.manager()
        for number in range(8):
            manager.update(produced(number), number * 10, T0)
        for number in range(3, 8):
            found = manager.check(produced(number), 99, CLIENT)
            assert found is not None
            assert found.first_offset == number * 10
        with pytest.raises(ApiError) as caught:
            manager.check(produced(2), 99, CLIENT)
        assert caught.value.error_code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER

    def test_same_sequence_but_other_count_is_no_duplicate(self) -> None:
        manager = self.manager()
        manager.update(produced(0, 2), 0, T0)
        with pytest.raises(ApiError):
            manager.check(produced(0, 3), 2, CLIENT)

    def test_unknown_producer_may_begin_anywhere(self) -> None:
        assert self.manager().check(produced(77), 0, CLIENT) is None

    def test_replicas_take_what_the_leader_took(self) -> None:
        manager = self.manager()
        manager.update(produced(0), 0, T0)
        assert manager.check(produced(50), 1, AppendOrigin.REPLICATION) is None

    def test_check_changes_nothing(self) -> None:
        manager = self.manager()
        manager.check(produced(0), 0, CLIENT)
        assert manager.entries == {}

    def test_snapshot_is_kafkas(self) -> None:
        file_system = disk()
        manager = self.manager(file_system)
        manager.update(produced(3, 2, producer_id=9, epoch=1), 40, T0)
        manager.map_end_offset = 42
        assert manager.take_snapshot() == "/d/00000000000000000042.snapshot"
        assert manager.take_snapshot() is None
        content = file_system.read_file("/d/00000000000000000042.snapshot")
        body = struct.pack(">iqhiqiqiq", 1, 9, 1, 4, 41, 1, T0, -1, -1)
        assert content == struct.pack(">hI", 1, crc32c(body)) + body

    @given(
        st.dictionaries(
            st.integers(0, 2**63 - 1),
            st.tuples(
                st.integers(0, 2**15 - 1),
                st.one_of(
                    st.none(),
                    st.tuples(st.integers(0, 2**31 - 1), st.integers(0, 2**62), st.integers(0, 1000)),
                ),
                st.integers(-1, 2**60),
                st.integers(-1, 2**31 - 1),
                st.integers(-1, 2**60),
            ),
            max_size=5,
        )
    )
    def test_snapshot_round_trip_with_its_transactional_fields(self, producers) -> None:
        entries = {}
        for producer_id, (epoch, batch, timestamp, coordinator_epoch, txn_offset) in producers.items():
            entry = entries[producer_id] = ProducerStateEntry(epoch)
            if batch is not None:
                entry.batches = (BatchMetadata(*batch, timestamp),)
            entry.last_timestamp = timestamp
            entry.coordinator_epoch = coordinator_epoch
            entry.current_txn_first_offset = txn_offset
        decoded = decode_snapshot("/d/s", encode_snapshot(entries))
        for producer_id, entry in entries.items():
            found = decoded[producer_id]
            for name in ProducerStateEntry.__slots__:
                assert getattr(found, name) == getattr(entry, name), name

    def test_snapshot_keeps_all_batches_that_may_be_sent_again(self) -> None:
        entry = ProducerStateEntry(3)
        entry.last_timestamp = 7
        entry.batches = tuple(BatchMetadata(sequence, 10 + sequence, 0, 7) for sequence in range(5))
        other = ProducerStateEntry(0)
        decoded = decode_snapshot("/d/s", encode_snapshot({1: entry, 2: other}))
        assert decoded[1].batches == entry.batches
        assert decoded[2].batches == ()

    @pytest.mark.parametrize("content", [b"", b"\0\1", b"\0\2" + bytes(8), b"\0\1" + bytes(8)])
    def test_damaged_snapshot(self, content: bytes) -> None:
        with pytest.raises(CorruptSnapshotError, match="/d/s"):
            decode_snapshot("/d/s", content)

    def test_newest_sound_snapshot_is_taken(self) -> None:
        file_system = disk()
        writer = self.manager(file_system)
        for end in (10, 20, 30, 40):
            writer.update(produced(end), end - 1, T0)
            writer.map_end_offset = end
            writer.take_snapshot()
        damaged = bytearray(file_system.read_file(writer.snapshot_path(30)))
        damaged[20] ^= 1
        file_system.write_file(writer.snapshot_path(30), bytes(damaged))
        reader = self.manager(file_system, 10, 20, 30, 40)
        reader.load(15, 35)
        assert (reader.map_end_offset, reader.entries[4].last_sequence) == (20, 20)
        assert reader.snapshot_offsets == [20]
        assert [info.name for info in file_system.list_dir("/d")] == ["00000000000000000020.snapshot"]
        reader.clear(50)
        assert (reader.entries, reader.map_end_offset, file_system.list_dir("/d")) == ({}, 50, [])

    def test_open_transactions_hold_the_last_stable_offset(self) -> None:
        file_system = disk()
        manager = self.manager(file_system)

        def transactional(producer_id: int) -> RecordBatch:
            options = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": 0, "is_transactional": True}
            return RecordBatch(batch_of(b"v", **options))

        manager.update(transactional(1), 10, T0)
        manager.update(transactional(2), 20, T0)
        assert manager.first_unstable_offset == 10
        assert manager.remove_expired(T0 + 10**9, 1) == 0
        manager.map_end_offset = 21
        manager.take_snapshot()
        again = self.manager(file_system, 21)
        again.load(0, 21)
        assert again.first_unstable_offset == 10
        marker = RecordBatchBuilder(
            base_offset=21, is_control=True, is_transactional=True, producer_id=1, producer_epoch=0
        )
        marker.append(T0, b"\0\0\0\1", b"\0\0\0\0\0\0")
        again.replay(RecordBatch(memoryview(marker.build())))
        again.on_high_watermark(21)
        assert again.first_unstable_offset == 10, "the marker is not below the high watermark yet"
        again.on_high_watermark(22)
        assert again.first_unstable_offset == 20
        assert again.map_end_offset == 22
