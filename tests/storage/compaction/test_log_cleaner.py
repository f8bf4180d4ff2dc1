"""Compaction of one log: which records are kept, and what happens to the files."""

from __future__ import annotations

import pytest

from protocol.errors import ApiError, ErrorCode
from protocol.records.batch import CompressionType
from protocol.records.control_records import ControlRecordType
from storage.compaction.clean_source import LogCleaningAbortedError
from storage.compaction.cleanable_log import plan_cleaning
from storage.compaction.cleaner import clean
from storage.compaction.segment_replacement import ReplacementTask
from storage.segment.segment_files import SNAPSHOT_SUFFIX, TXN_INDEX_SUFFIX
from storage.segment.transaction_index import AbortedTxn, decode_aborted, encode_aborted
from tests.storage.compaction.cleaning import COMPACT, Stand, end_transaction, keys, put, rows_of
from tests.storage.support import DIR, T0, TP, delete_expired, read_all

RETENTION_MS = COMPACT.delete_retention_ms


class TestCleaning:
    def test_the_newest_of_each_key_stays(self) -> None:
        stand = Stand()
        log = stand.segments(keys("aab"), keys("bc"), keys("a"))
        stand.clean()
        assert [(offset, key) for offset, key, _ in rows_of(log)] == [(3, b"b"), (4, b"c"), (5, b"a")]
        assert [segment.base_offset for segment in log.segments] == [0, 6], "small segments are put together"
        assert log.cleaner_checkpoint == 6
        assert stand.file_system.read_file(f"{DIR}/cleaner-offset-checkpoint") == b"0\n1\nt 0 6\n"
        assert stand.restart().logs[TP].cleaner_checkpoint == 6

    def test_the_end_of_the_cleaned_part_stays_known(self) -> None:
        stand = Stand(COMPACT.replace(cleanup_policy=frozenset({"delete"})))
        log = stand.segments([(b"a", b"v"), (None, b"nobody's"), (None, b"nor this")])
        log.config = COMPACT
        stand.clean()
        assert [(batch.base_offset, batch.count) for batch in read_all(log)] == [(0, 1), (2, 0)]
        stand.segments(keys("b"))
        stand.clean()
        assert [(batch.base_offset, batch.count) for batch in read_all(log)] == [(0, 1), (3, 1)]

    def test_a_small_map_takes_several_turns(self) -> None:
        stand = Stand()
        log = stand.segments(keys("abcabc"), keys("cba"))
        ends = []
        while log.cleaner_checkpoint != 9:
            stand.clean(map_capacity=2)
            ends.append(log.cleaner_checkpoint)
        assert ends == [2, 4, 6, 8, 9], "a part of a segment at a time"
        assert [offset for offset, _, _ in rows_of(log)] == [6, 7, 8]

    def test_a_map_for_nothing(self) -> None:
        with pytest.raises(ValueError, match=r"You can increase log\.cleaner\.dedupe\.buffer\.size or decrease"):
            plan_cleaning(Stand().cleanable(), T0, 0)

    def test_records_without_a_key_go(self) -> None:
        stand = Stand(COMPACT.replace(cleanup_policy=frozenset({"delete"})))
        stand.segments([(None, b"nobody's"), (b"a", b"v")])
        stand.log.config = COMPACT
        stand.clean()
        assert rows_of(stand.log) == [(1, b"a", b"v")]

    @pytest.mark.parametrize("codec", CompressionType)
    def test_batches_keep_their_codec(self, codec: CompressionType) -> None:
        stand = Stand()
        put(stand.log, (b"a", b"1" * 50), (b"b", b"2" * 50), compression=codec)
        stand.segments(keys("a"))
        stand.clean()
        batches = read_all(stand.log)
        assert [(batch.compression, batch.count, batch.base_offset, batch.last_offset) for batch in batches] == [
            (codec, 1, 0, 1),
            (CompressionType.NONE, 1, 2, 2),
        ]

    def test_the_life_of_a_tombstone(self) -> None:
        stand = Stand()
        log = stand.segments(keys("ab"), [(b"a", None)])
        stand.clean()
        assert rows_of(log) == [(1, b"b", b"value"), (2, b"a", None)]
        assert [batch.delete_horizon_ms for batch in read_all(log)] == [None, T0 + RETENTION_MS]
        for number, passed_ms in enumerate((RETENTION_MS - 1, RETENTION_MS)):
            stand.segments(keys("c"))
            stand.clean(T0 + passed_ms)
            assert (2 in [offset for offset, _, _ in rows_of(log)]) == (number == 0)

    def test_the_life_of_markers(self) -> None:
        stand = Stand()
        log = stand.log
        for producer_id, kind in ((1, ControlRecordType.ABORT), (2, ControlRecordType.COMMIT)):
            row = (b"key", b"of %d" % producer_id)
            put(log, row, producer_id=producer_id, producer_epoch=0, base_sequence=0, is_transactional=True)
            end_transaction(log, producer_id, 0, kind)
        stand.segments(keys("z"))
        log.producers.remove_expired(T0 + 10**9, 1)
        stand.clean()
        # The aborted record is gone, but its marker and the index entry remain for current readers.
        assert [(batch.base_offset, batch.is_control) for batch in read_all(log)] == [
            (1, True), (2, False), (3, True), (4, False),
        ]  # fmt: skip
        path = log.segments[0].files.path_of(TXN_INDEX_SUFFIX)
        assert decode_aborted(path, stand.file_system.read_file(path)) == [AbortedTxn(1, 0, 1, 2)]
        stand.segments([(b"key", b"newer")])
        stand.clean(T0 + 1)
        assert [batch.base_offset for batch in read_all(log)] == [1, 3, 4, 5]
        horizons = {batch.base_offset: batch.delete_horizon_ms for batch in read_all(log) if batch.is_control}
        assert horizons == {1: T0 + 1 + RETENTION_MS, 3: None}, "nothing was left of the first one"
        stand.segments(keys("y"))
        stand.clean(T0 + 2)
        stand.segments(keys("x"))
        stand.clean(T0 + 2 + RETENTION_MS)
        assert [batch.base_offset for batch in read_all(log)] == [4, 5, 6, 7]
        assert not stand.file_system.exists(log.segments[0].files.path_of(TXN_INDEX_SUFFIX))

    def test_what_producers_need_stays(self) -> None:
        stand = Stand()
        log = stand.log
        put(log, (b"a", b"1"), producer_id=7, producer_epoch=3, base_sequence=0)
        put(log, (b"a", b"2"), (b"a", b"3"), producer_id=7, producer_epoch=3, base_sequence=1)
        stand.segments(keys("a"), keys("b"))
        stand.clean()
        empty = read_all(log)[0]
        assert (empty.count, empty.base_offset, empty.last_offset, empty.last_sequence) == (0, 1, 2, 2)
        for info in stand.file_system.list_dir(log.path):
            if info.name.endswith(SNAPSHOT_SUFFIX):
                stand.file_system.remove(f"{log.path}/{info.name}")
        log = stand.restart().logs[TP]
        assert log.producer_state.entries[7].last_sequence == 2
        info = put(log, (b"a", b"4"), producer_id=7, producer_epoch=3, base_sequence=3)
        assert not info.duplicate

    def test_the_time_of_the_file_stays(self) -> None:
        stand = Stand()
        for now_ms in (T0 - 3000, T0 - 2000):
            stand.file_system.now_ms = now_ms
            stand.segments(keys("a"), now_ms=now_ms)
        stand.file_system.now_ms = T0
        stand.clean()
        assert stand.log.segments[0].modified_ms == T0 - 2000

    def test_throttle_is_told_of_all_bytes(self) -> None:
        stand = Stand()
        stand.segments(keys("abc"), keys("def"))
        told: list[int] = []
        result = clean(stand.file_system, stand.task(), told.append)
        stats = result.stats
        assert sum(told) == stats.map_bytes_read + stats.bytes_read + stats.bytes_written
        assert (stats.map_keys, stats.messages_read, stats.messages_written) == (6, 6, 6)

    def test_what_can_stay_is_not_written_again(self) -> None:
        stand = Stand(COMPACT.replace(segment_bytes=300))
        log = stand.segments(keys("abcd"), keys("efgh"), keys("ef"))
        first, second = log.segments[:2]
        result = clean(stand.file_system, stand.task())
        assert [group.base_offset for group in result.groups] == [4]
        assert result.stats.messages_written == 8
        stand.clean()
        assert log.segments[0] is first
        assert log.segments[1] is not second
        assert [(offset, key) for offset, key, _ in rows_of(log)] == [
            (0, b"a"), (1, b"b"), (2, b"c"), (3, b"d"), (6, b"g"), (7, b"h"), (8, b"e"), (9, b"f"),
        ]  # fmt: skip

    def test_what_stands_before_the_first_change_is_copied(self) -> None:
        stand = Stand(COMPACT.replace(segment_bytes=300, index_interval_bytes=0))
        log = stand.segments(keys("abcd"), keys("d"))
        stand.clean()
        assert [(batch.base_offset, batch.count) for batch in read_all(log)] == [(0, 1), (1, 1), (2, 1), (4, 1)]
        assert [log.segments[0].files.offset_index.entry(number).offset for number in range(2)] == [1, 2]

    def test_a_missing_transaction_index_is_made(self) -> None:
        stand = Stand()
        put(stand.log, (b"a", b"aborted"), producer_id=1, producer_epoch=0, base_sequence=0, is_transactional=True)
        end_transaction(stand.log, 1, 0, ControlRecordType.ABORT)
        log = stand.segments([])
        # The empty batch keeps the producer's last sequence number, and needs the marker; the index was lost.
        stand.clean()
        path = log.segments[0].files.path_of(TXN_INDEX_SUFFIX)
        stand.file_system.remove(path)
        stand.segments(keys("x" * 13))
        segment = log.segments[0]
        stand.clean()
        assert log.segments[0] is not segment
        assert decode_aborted(path, stand.file_system.read_file(path)) == [AbortedTxn(1, 0, 1, 2)]


class TestWhatCannotBeCleaned:
    def flip(self, stand: Stand, position: int) -> None:
        path = stand.log.segments[0].path
        data = bytearray(stand.file_system.read_file(path))
        data[position] ^= 1
        stand.file_system.write_file(path, bytes(data))

    @pytest.mark.parametrize(("position", "what"), [(69, "computed crc"), (70 + 7, "outside"), (70 + 16, "magic")])
    def test_a_flipped_bit_is_not_given_a_new_crc(self, position: int, what: str) -> None:
        stand = Stand()
        stand.segments([(b"a", b"v") for _ in range(4)])
        assert read_all(stand.log)[0].size_in_bytes == 70, "see the positions above"
        self.flip(stand, position)
        before = stand.names()
        with pytest.raises(ApiError, match=f"00000000000000000000.log is corrupt at byte .*{what}") as raised:
            clean(stand.file_system, stand.task())
        assert raised.value.error_code is ErrorCode.CORRUPT_MESSAGE
        assert stand.names() == before, "nothing of the attempt is left"

    def test_a_file_that_was_cut(self) -> None:
        stand = Stand()
        stand.segments(keys("abcd"))
        task = stand.task()
        stand.file_system.open(stand.log.segments[0].path).truncate(100)
        with pytest.raises(ApiError, match="the file ends"):
            clean(stand.file_system, task)

    def test_a_segment_that_went(self) -> None:
        stand = Stand()
        log = stand.segments(keys("abcd"), keys("efg"))
        task = stand.task()
        log.delete_records_before(4, 7)
        log.delete_old_segments()
        with pytest.raises(LogCleaningAbortedError, match=r"00000000000000000000\.log is gone"):
            clean(stand.file_system, task)
        assert not [name for name in stand.names() if name.endswith(".cleaned")]

    def test_a_log_that_went(self) -> None:
        stand = Stand()
        stand.segments(keys("abcd"))
        task = stand.task()
        result = clean(stand.file_system, task)
        log = stand.log
        stand.manager.delete(TP, T0)
        with pytest.raises(LogCleaningAbortedError):
            clean(stand.file_system, task)
        replacement = ReplacementTask(log, task, result)
        replacement.run()
        replacement.complete()
        assert not replacement.is_used


class TestReplacing:
    def test_not_what_retention_has_dropped(self) -> None:
        stand = Stand(COMPACT.replace(segment_bytes=300))
        log = stand.segments(keys("abcd"), keys("abce"), keys("efgh"))
        task = stand.task()
        result = clean(stand.file_system, task)
        assert len(result.groups) == 2
        log.delete_records_before(4, 12)
        log.delete_old_segments()
        before = rows_of(log)
        replacement = ReplacementTask(log, task, result)
        replacement.run()
        replacement.complete()
        assert not replacement.is_used
        assert log.cleaner_checkpoint == 0
        assert rows_of(log) == before
        assert not [name for name in stand.names() if ".cleaned" in name or ".swap" in name]
        stand.clean()
        assert [key for _, key, _ in rows_of(log)] == list(map(bytes, zip(b"abcefgh", strict=True)))

    def test_not_after_a_truncation(self) -> None:
        stand = Stand()
        log = stand.segments(keys("abcd"), keys("abcd"))
        task = stand.task()
        result = clean(stand.file_system, task)
        log.truncate_to(7, T0)
        replacement = ReplacementTask(log, task, result)
        replacement.run()
        replacement.complete()
        assert not replacement.is_used
        assert len(rows_of(log)) == 7

    def test_a_truncation_before_the_names_are_durable(self) -> None:
        stand = Stand()
        log = stand.segments(keys("abcd"), keys("abcd"))
        task = stand.task()
        replacement = ReplacementTask(log, task, clean(stand.file_system, task))
        replacement.run()
        log.truncate_to(6, T0)
        replacement.complete()
        assert log.cleaner_checkpoint == 0

    def test_readers_of_the_old_segments_go_on(self) -> None:
        stand = Stand()
        log = stand.segments(keys("aaaa"), keys("bbbb"))
        held = log.read(1, 1 << 20)
        assert held.file is not None
        data = held.file.pread(held.position, held.size)
        for _ in range(2):
            stand.clean()
            held.file.close()  # like the limit on descriptors
            assert held.file.pread(held.position, held.size) == data
            stand.segments(keys("ab"))
        assert [offset for offset, _, _ in rows_of(log)] == [8, 9, 10, 11]
        deleted = [name for name in stand.names() if name.endswith(".deleted")]
        assert len(deleted) == len(set(deleted)) > 6
        delete_expired(stand.manager, T0)
        delete_expired(stand.manager, T0 + COMPACT.file_delete_delay_ms)
        assert not [name for name in stand.names() if name.endswith(".deleted")]

    def test_positions_of_old_segments_are_not_used(self) -> None:
        stand = Stand()
        log = stand.segments(keys("abcd"), keys("abce"))
        one_batch = 74
        for offset in range(8):
            assert log.read(offset, one_batch).size == one_batch
        stand.clean()
        assert [offset for offset, _, _ in rows_of(log)] == [3, 4, 5, 6, 7]
        found = []
        at = 0
        while at < 8:
            info = log.read(at, one_batch)
            assert info.file is not None
            at = int.from_bytes(info.file.pread(info.position, 8), "big") + 1
            found.append(at - 1)
        assert found == [3, 4, 5, 6, 7]

    def test_snapshots_of_merged_segments_go(self) -> None:
        stand = Stand()
        log = stand.log
        for sequence in range(3):
            put(log, (b"a", b"v"), producer_id=1, producer_epoch=0, base_sequence=sequence)
            log.roll(T0)
        log.flush(T0)
        snapshots = [name for name in stand.names() if name.endswith(SNAPSHOT_SUFFIX)]
        assert [int(name[:20]) for name in snapshots] == [1, 2, 3]
        stand.clean()
        snapshots = [name for name in stand.names() if name.endswith(SNAPSHOT_SUFFIX)]
        assert [int(name[:20]) for name in snapshots] == [3]

    def test_gaps_of_a_log_that_is_no_longer_compacted_are_no_loss(self) -> None:
        stand = Stand(COMPACT.replace(segment_bytes=300))
        stand.segments(keys("abcd"), keys("abcd"), keys("abcd"))
        # The recovery point of the last checkpoint is 0: a start after a crash scans the whole log.
        stand.clean()
        before = rows_of(stand.log)
        stand.config = stand.config.replace(cleanup_policy=frozenset({"delete"}))
        assert rows_of(stand.restart().logs[TP]) == before


def test_transaction_index_has_kafkas_format() -> None:
    entries = [AbortedTxn(1, 2, 3, 4), AbortedTxn(2**40, 5, 6, 7)]
    data = encode_aborted(entries)
    assert len(data) == 68
    assert data[:34] == bytes(2) + b"".join(number.to_bytes(8, "big") for number in (1, 2, 3, 4))
    assert decode_aborted("x", data + b"cut off") == entries
    with pytest.raises(ValueError, match="x has an entry of version 1; only version 0 can be read"):
        decode_aborted("x", b"\0\1" + data[2:])
