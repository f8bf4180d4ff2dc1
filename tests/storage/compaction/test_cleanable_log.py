"""Which log is compacted next, how far, and which of its segments are merged."""

from __future__ import annotations

from protocol.records.control_records import ControlRecordType
from storage.compaction.cleanable_log import cleanable_log, filthiest
from storage.compaction.cleaner import GroupingSize, group_by_size
from storage.log.log_flush import is_unchanged_since_load
from storage.log_config import LogConfig
from tests.storage.compaction.cleaning import COMPACT, Stand, end_transaction, keys, put
from tests.storage.support import DIR, T0, TP, close_cleanly, open_manager


class TestChoosing:
    def test_bounds(self) -> None:
        stand = Stand()
        log = stand.segments(keys("abc"), keys("def"), keys("ghi"))
        put(log, (b"x", b"active"))
        assert stand.cleanable().first_uncleanable_offset == 9, "the active segment"
        assert stand.cleanable(high_watermark=8).first_uncleanable_offset == 6, "only whole segments"
        log.durability.recovery_point = 4
        assert stand.cleanable().first_uncleanable_offset == 3, "what is not on stable storage"
        log.durability.recovery_point = 9
        put(log, (b"y", b"open"), producer_id=1, producer_epoch=0, base_sequence=0, is_transactional=True)
        assert stand.cleanable().first_uncleanable_offset == 9
        assert stand.cleanable().cleanable_ratio == 1.0

    def test_not_beyond_an_open_transaction(self) -> None:
        stand = Stand()
        log = stand.segments(keys("abc"))
        put(log, (b"y", b"open"), producer_id=1, producer_epoch=0, base_sequence=0, is_transactional=True)
        stand.segments(keys("abc"))
        assert stand.cleanable().first_uncleanable_offset == 3
        end_transaction(log, 1, 0, ControlRecordType.COMMIT)
        assert stand.cleanable().first_uncleanable_offset == 7

    def test_min_compaction_lag(self) -> None:
        stand = Stand(COMPACT.replace(min_compaction_lag_ms=100))
        stand.segments(keys("abc"), now_ms=T0)
        stand.segments(keys("def"), now_ms=T0 + 50)
        assert stand.cleanable(T0 + 99).first_uncleanable_offset == 0
        assert stand.cleanable(T0 + 100).first_uncleanable_offset == 3
        assert stand.cleanable(T0 + 150).first_uncleanable_offset == 6

    def test_min_compaction_lag_goes_by_the_file_where_records_have_no_time(self) -> None:
        stand = Stand(COMPACT.replace(min_compaction_lag_ms=100))
        stand.file_system.now_ms = T0
        put(stand.log, (b"a", b"v"), timestamps=[-1])
        stand.log.roll(T0)
        stand.log.flush(T0)
        assert stand.cleanable(T0 + 99).first_uncleanable_offset == 0
        assert stand.cleanable(T0 + 100).first_uncleanable_offset == 1

    def test_max_compaction_lag_makes_a_log_due(self) -> None:
        stand = Stand(COMPACT.replace(min_cleanable_dirty_ratio=1.0, max_compaction_lag_ms=100))
        stand.segments(keys("abc"))
        assert not stand.cleanable(T0 + 100).is_due
        late = stand.cleanable(T0 + 130)
        assert late.is_due
        assert late.max_compaction_delay_ms == 30
        assert filthiest([late]) is late

    def test_max_compaction_lag_rolls_segments_in_time(self) -> None:
        config = COMPACT.replace(segment_ms=1000, max_compaction_lag_ms=100, segment_jitter_ms=0)
        assert config.max_segment_ms == 100
        assert config.replace(cleanup_policy=frozenset({"delete"})).max_segment_ms == 1000
        stand = Stand(config)
        put(stand.log, (b"a", b"v"), now_ms=T0)
        put(stand.log, (b"a", b"v"), now_ms=T0 + 101)
        assert len(stand.log.segments) == 2

    def test_the_dirtiest_first(self) -> None:
        clean_one, dirty = Stand(COMPACT.replace(min_cleanable_dirty_ratio=0.3)), Stand()
        clean_one.segments(keys("abcdef"))
        clean_one.clean()
        clean_one.segments(keys("a"))
        dirty.segments(keys("abc"))
        dirty.clean()
        dirty.segments(keys("abc"))
        first, second = clean_one.cleanable(), dirty.cleanable()
        assert 0.1 < first.cleanable_ratio < 0.3 < second.cleanable_ratio < 0.6
        assert not first.is_due
        assert filthiest([first, second]) is second
        assert filthiest([first]) is None
        assert filthiest([Stand().cleanable()]) is None, "an empty log"

    def test_not_these(self) -> None:
        assert cleanable_log(Stand(LogConfig()).log, 0, T0) is None
        stand = Stand()
        stand.log.uncleanable_reason = "broken"
        assert cleanable_log(stand.log, 0, T0) is None

    def test_a_checkpoint_below_the_log_start(self) -> None:
        stand = Stand()
        log = stand.segments(keys("abc"), keys("def"))
        stand.clean()
        log.cleaner_checkpoint = 2
        log.local.log_start_offset = 4
        found = stand.cleanable()
        assert found.first_dirty_offset == 4
        assert found.warning == (
            "Resetting first dirty offset of t-0 to log start offset 4 since the checkpointed offset 2 is invalid."
        )
        assert stand.cleanable().warning is None, "it is told once"
        log.cleaner_checkpoint = 2
        log.config = COMPACT.replace(cleanup_policy=frozenset({"compact", "delete"}))
        assert stand.cleanable().warning is None, "retention moves the log start, nothing is wrong"
        assert stand.cleanable().first_dirty_offset == 4

    def test_a_checkpoint_beyond_the_log_end(self) -> None:
        stand = Stand()
        log = stand.segments(keys("abc"))
        log.cleaner_checkpoint = 50
        found = stand.cleanable()
        assert found.first_dirty_offset == 0
        assert found.warning == (
            "The last checkpoint dirty offset for partition t-0 is 50, which is larger than the log end offset 3. "
            "Resetting to the log start offset 0."
        )

    def test_a_checkpoint_beyond_the_log_end_is_noticed_at_start(self) -> None:
        stand = Stand()
        stand.segments(keys("abc"))
        stand.file_system.write_file(f"{DIR}/cleaner-offset-checkpoint", b"0\n1\nt 0 50\n")
        stand.file_system.kill_process()
        manager, report = open_manager(stand.file_system, COMPACT)
        assert manager.logs[TP].cleaner_checkpoint == 0
        assert any("larger than the log end offset 3" in line for line in report.ignored)

    def test_truncation_takes_the_checkpoint_along(self) -> None:
        stand = Stand()
        log = stand.segments(keys("abc"), keys("abc"))
        stand.clean()
        assert log.cleaner_checkpoint == 6
        log.truncate_to(4, T0)
        assert log.cleaner_checkpoint == 4
        log.prepare_full_truncation(2, T0).finish()
        assert log.cleaner_checkpoint == 2

    def test_an_idle_log_is_not_read(self) -> None:
        stand = Stand()
        put(stand.log, (b"a", b"v"))
        close_cleanly(stand.manager)
        log = stand.restart().logs[TP]
        assert cleanable_log(log, 1, T0) is not None
        assert is_unchanged_since_load(log.durability, log.producers, log.epochs)


class TestGrouping:
    def sizes(self, *sizes: tuple[int, int, int, int]) -> list[GroupingSize]:
        return [GroupingSize(*each) for each in sizes]

    def test_by_size(self) -> None:
        segments = self.sizes((0, 40, 0, 0), (10, 40, 0, 0), (20, 40, 0, 0), (30, 10, 0, 0))
        assert group_by_size(segments, 100, 100, 40) == [2, 2]
        assert group_by_size(segments, 130, 100, 40) == [4]
        assert group_by_size(segments, 1, 100, 40) == [1, 1, 1, 1]
        assert group_by_size([], 1, 100, 40) == []

    def test_by_the_sizes_of_indexes(self) -> None:
        segments = self.sizes((0, 1, 60, 0), (10, 1, 60, 60), (20, 1, 0, 60))
        assert group_by_size(segments, 100, 120, 30) == [3]
        assert group_by_size(segments, 100, 119, 30) == [1, 1, 1]

    def test_by_the_range_of_offsets(self) -> None:
        far = 2**31 - 1
        segments = self.sizes((0, 1, 0, 0), (10, 1, 0, 0))
        assert group_by_size(segments, 100, 100, far + 1) == [2]
        assert group_by_size(segments, 100, 100, far + 2) == [1, 1]
        empty = self.sizes((0, 1, 0, 0), (10, 0, 0, 0))
        assert group_by_size(empty, 100, 100, far + 2) == [2], "nothing of it has to be in an index"
        assert group_by_size(self.sizes((0, 1, 0, 0), (10, 1, 0, 0), (far, 1, 0, 0)), 100, 100, far + 9) == [2, 1]
