"""Opening the directory of a partition, and repairing it after an unclean stop (Kafka class `LogLoader`).

After a clean stop only the end of the last segment is read. Otherwise everything above the recovery point is read batch
by batch, the tail is cut at the first incomplete or damaged batch, and indexes, leader epochs and producer state are
rebuilt from the recovery point.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise

from protocol.records.batch import HEADER_BYTES, RecordBatch
from protocol.records.record_format import MAGIC_AT
from protocol.topic_partition import TopicPartition
from protocol.uuids import Uuid
from storage.directory.log_directory import DeferredDeletion, LogDirectory
from storage.directory.meta_properties import read_topic_id
from storage.io.file_system import FileInfo, FileSystem
from storage.log.leader_epoch import EpochEntry
from storage.log.producer_state import ProducerStateManager, load_producers
from storage.log.unified_log import UnifiedLog
from storage.log_config import LogConfig
from storage.recovery.load_options import LoadOptions, LoadResult
from storage.recovery.segment_recovery import (
    AbortedTransactionsFound,
    finish_interrupted_swaps,
    rebuild_torn_indexes,
    recover_segment,
)
from storage.recovery.segment_split import Piece, SegmentOverflowError, find_overflow, split_segment
from storage.segment.batch_walk import CorruptRange, Place, walk
from storage.segment.log_segment import MAX_RELATIVE_OFFSET, LogSegment, put_in_place, segment_index
from storage.segment.segment_files import (
    DELETED_SUFFIX,
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRUNCATION_MARKER,
    file_name,
)

_OLD_MESSAGE = struct.Struct(">qiIb")  # offset, size, CRC-32 of the bytes after it, magic (Kafka class LegacyRecord)
_CRC_BYTES = 4
_MIN_OLD_MESSAGE_BYTES = 14


class UnsupportedFormatError(ValueError):
    """Records of message format v0 or v1; the message names the file."""


def refuse_old_format(path: str, data: bytes) -> None:
    """Raises UnsupportedFormatError when `data`, the start of a file, begins with a message of format v0 or v1.

    The CRC must match, because the zeros that a power cut leaves in a file have the magic of format v0.
    """
    if len(data) <= MAGIC_AT:
        return
    _, size, crc, magic = _OLD_MESSAGE.unpack_from(data)
    end = MAGIC_AT - _CRC_BYTES + size
    is_whole = size >= _MIN_OLD_MESSAGE_BYTES and end <= len(data)
    if magic in {0, 1} and is_whole and zlib.crc32(data[MAGIC_AT:end]) == crc:
        raise UnsupportedFormatError(
            f"{path} holds records of message format v{magic}; "
            "only message format v2 (Kafka 0.11 and later) can be read"
        )


_OLD_MESSAGE_MAX_BYTES = 16 << 20
"""A first message above this size is treated as damage, not as an old format."""
_SEGMENT_FILE = re.compile(r"(\d{20})(\.[a-z]+)")


class LogLoader:
    """Loads one log; each object serves one call of `load`."""

    def __init__(
        self,
        file_system: FileSystem,
        directory: LogDirectory,
        topic_partition: TopicPartition,
        config: LogConfig,
        options: LoadOptions,
        on_bytes: Callable[[int], None] = lambda _count: None,
    ) -> None:
        """`on_bytes` is called with the number of bytes read so far during repair."""
        self._file_system = file_system
        self._directory = directory
        self._topic_partition = topic_partition
        self._path = f"{directory.path}/{options.name or topic_partition}"
        self._config = config
        self._options = options
        self._checkpointed = options.recovery_point
        self._on_bytes = on_bytes
        self._recovered = 0
        self._truncated_bytes = 0
        self._split_segments: list[str] = []
        self._gaps_end = 0
        self._limit: int | None = None
        """The log end, if known in spite of a damaged last batch."""

    def load(self, found: Iterable[FileInfo] | None = None) -> LoadResult:
        """Open the log; `found` is the content of its directory, if already listed.

        Raises UnsupportedFormatError, ValueError and ApiError CORRUPT_MESSAGE (the message names the file), OSError.
        """
        listed = self._file_system.list_dir(self._path) if found is None else found
        files = {info.name: info for info in listed if not info.is_dir}
        topic_id = read_topic_id(self._file_system, self._path)
        files = finish_interrupted_swaps(self._file_system, self._path, files)
        noted = self._find_truncation_marker(files)
        segments = self._find_segments(files)
        snapshots = [
            int(match[1]) for name in files if (match := _SEGMENT_FILE.fullmatch(name)) and match[2] == SNAPSHOT_SUFFIX
        ]
        if not segments:
            result = self._create_first_segment(topic_id, snapshots)
            self._carry_over_truncation(result.log, noted)
            return result
        self._check_format(segments[0])
        log_start = max(self._options.log_start_offset, segments[0].base_offset)
        # This comes first: a power cut can restore some of the segments deleted last, and the gaps between them are not
        # a loss.
        below = segment_index(segments, log_start)
        self._drop(segments[:below])
        del segments[:below]
        log_end = None
        for segment, following in pairwise(segments):
            segment.batches.limit_offset = following.base_offset
        segments[-1].batches.limit_offset = max(segments[-1].batches.limit_offset, self._options.recovery_point)
        self._rebuild_missing_indexes(segments, files)
        if self._options.clean:
            log_end = segments[-1].next_offset()
            if log_end is not None and self._is_not_the_end(segments[-1], log_end):
                log_end, self._limit = None, self._options.recovery_point
        if log_end is None:
            log = self._recover(topic_id, segments, log_start, snapshots, files)
        else:
            log = self._make_log(topic_id, segments, log_start, log_end, log_end, snapshots)
            if self._recovered:
                _ = log.producer_state  # the log has changed since it was closed
            for segment in (segments[0], segments[-1]):
                segment.files.put_away()
        known = segment_index(segments, self._options.recovery_point) if log_end is None else len(segments)
        self._recovered += rebuild_torn_indexes(
            self._file_system, str(self._topic_partition), segments[:known], snapshots, files
        )
        high_watermark, lost_its_end = self._options.high_watermark, log.log_end_offset < log_start
        if lost_its_end:
            high_watermark = max(high_watermark, log_start)
            # The checkpointed log start lies beyond the log end: restart empty at the log start.
            log.prepare_full_truncation(log_start, self._options.now_ms).finish()
        log.cleaner_checkpoint = self._options.cleaner_checkpoint
        if log.cleaner_checkpoint is not None and noted is not None:
            log.cleaner_checkpoint = min(log.cleaner_checkpoint, self._options.recovery_point)
        self._carry_over_truncation(log, noted)
        return LoadResult(log, self._truncated_bytes, high_watermark, lost_its_end, self._split_segments)

    # -- files --------------------------------------------------------------------------------------------------------

    def _find_truncation_marker(self, files: dict[str, FileInfo]) -> int | None:
        """Find a TRUNCATION_MARKER and return its offset: after a truncation the checkpointed recovery point may still
        be too high, unless the log was closed since.
        """
        name = next((name for name in files if name.startswith(TRUNCATION_MARKER)), None)
        if name is None:
            return None
        if self._options.clean:
            self._file_system.remove(f"{self._path}/{name}")
            return None
        noted = int(name.removeprefix(TRUNCATION_MARKER))
        self._options = self._options.replace(recovery_point=min(noted, self._options.recovery_point))
        return noted

    def _carry_over_truncation(self, log: UnifiedLog, noted: int | None) -> None:
        """Write a truncation marker for the next process that opens the log. Raises OSError."""
        log.durability.highest_recovery_point = max(self._checkpointed, log.recovery_point)
        if noted is not None:
            log.durability.has_unsynced_truncation, log.durability.truncation_marker = True, noted
        elif log.log_end_offset < self._checkpointed:
            log.durability.mark_truncation(log.path, log.log_end_offset)

    def _find_segments(self, files: dict[str, FileInfo]) -> list[LogSegment]:
        segments = []
        for name, info in files.items():
            match = _SEGMENT_FILE.fullmatch(name)
            if match is None:
                continue
            if match[2] == LOG_SUFFIX:
                segments.append(
                    LogSegment(self._file_system, self._path, int(match[1]), info.size, self._options.now_ms)
                )
            elif match[2] in {OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX} and match[1] + LOG_SUFFIX not in files:
                self._file_system.remove(f"{self._path}/{name}")
        segments.sort(key=lambda segment: segment.base_offset)
        return segments

    def _check_format(self, segment: LogSegment) -> None:
        """Refuse records of format v0 and v1; if the log has any, the oldest segment does.

        Raises UnsupportedFormatError.
        """
        size = min(segment.size, _OLD_MESSAGE_MAX_BYTES)
        magic = segment.file.pread(MAGIC_AT, 1) if size else b""
        if magic and magic[0] in {0, 1}:
            refuse_old_format(segment.path, segment.file.pread(0, size))

    def _rebuild_missing_indexes(self, segments: list[LogSegment], files: dict[str, FileInfo]) -> None:
        """Rebuild indexes that are missing, truncated, or refer to records that a power cut removed, unless recovery
        will do so.
        """
        at, recovered_from = 0, segments[self._first_to_recover(segments)].base_offset
        while at < len(segments):
            segment = segments[at]
            is_recovered = segment.size > 0 and segment.base_offset >= recovered_from and not self._options.clean
            if not is_recovered and _lacks_indexes(segment, files):
                builder, too_far = segment.build_indexes(self._config.index_interval_bytes)
                self._recovered += 1
                pieces = [] if too_far is None else self._find_overflow(segments, at, too_far)
                if pieces:
                    segments[at : at + 1] = self._split(segment, pieces)
                    continue
                segment.use_indexes(builder)
            at += 1

    def _find_overflow(self, segments: list[LogSegment], at: int, position: int) -> list[Piece]:
        after = segments[at + 1].base_offset if at + 1 < len(segments) else None
        recovery_point, may_have_gaps = self._options.recovery_point, self._options.may_have_gaps
        return find_overflow(segments[at], position, after, recovery_point, may_have_gaps=may_have_gaps)

    def _split(self, segment: LogSegment, pieces: Sequence[Piece]) -> list[LogSegment]:
        """Replace `segment` with segments that fit the range of an index; their indexes are missing.

        After an interruption the next start finds either the old segment or all new ones.
        """
        self._split_segments.append(segment.path)
        new = split_segment(self._file_system, self._path, segment, pieces)
        put_in_place(new, lambda: self._drop([segment]))
        self._file_system.sync_dir(self._path)
        for piece, following in pairwise(new):
            piece.batches.limit_offset = following.base_offset
        new[-1].batches.limit_offset = segment.batches.limit_offset
        return new

    # -- making the log -----------------------------------------------------------------------------------------------

    def _make_log(
        self,
        topic_id: Uuid | None,
        segments: list[LogSegment],
        log_start: int,
        log_end: int,
        recovery_point: int,
        snapshots: list[int],
    ) -> UnifiedLog:
        segments[-1].batches.limit_offset = log_end
        log = UnifiedLog(
            file_system=self._file_system,
            directory=self._directory,
            path=self._path,
            topic_partition=self._topic_partition,
            topic_id=topic_id,
            config=self._config,
            segments=segments,
            log_start_offset=min(max(log_start, segments[0].base_offset), log_end),
            log_end_offset=log_end,
            recovery_point=recovery_point,
            snapshot_offsets=tuple(snapshots),
            names_are_synced=self._options.clean and log_end > 0,
            now_ms=self._options.now_ms,
        )
        for segment in segments:
            log.local.report_corrupt_ranges(segment)
        return log

    def _create_first_segment(self, topic_id: Uuid | None, snapshots: list[int]) -> LoadResult:
        base = self._options.log_start_offset
        self._file_system.create(f"{self._path}/{file_name(base, LOG_SUFFIX)}")
        segment = LogSegment(self._file_system, self._path, base, 0, self._options.now_ms, is_new=True)
        log = self._make_log(topic_id, [segment], base, base, base, snapshots)
        return LoadResult(log, high_watermark=max(self._options.high_watermark, base), lost_its_end=base > 0)

    def _is_not_the_end(self, segment: LogSegment, log_end: int) -> bool:
        """Whether the offsets in the last batch of a cleanly closed log have changed.

        The CRC does not cover them, but the log end was recorded. If the batches before the last one already reach the
        recorded end, that end is outdated and proves nothing.
        """
        closed_at = self._options.recovery_point
        if not segment.base_offset < closed_at < log_end:
            return segment.base_offset < log_end < closed_at
        start = Place(0, segment.base_offset, -1)
        found = walk(segment.file.pread, start, segment.size, segment.size, closed_at)
        return any(isinstance(each, CorruptRange) and each.first_offset < closed_at for each in found)

    def _recover(
        self,
        topic_id: Uuid | None,
        segments: list[LogSegment],
        log_start: int,
        snapshots: list[int],
        files: Mapping[str, FileInfo],
    ) -> UnifiedLog:
        first = self._first_to_recover(segments)
        epochs: list[EpochEntry] = []
        producers = self._producers_before(segments, first, snapshots)
        aborted = AbortedTransactionsFound(producers, files)

        def note(batch: RecordBatch) -> None:
            if not epochs or batch.partition_leader_epoch > epochs[-1].epoch:
                epochs.append(EpochEntry(batch.partition_leader_epoch, batch.base_offset))
            aborted.note(batch)

        known_end = producers.map_end_offset
        log_end = segments[first].base_offset
        at = first
        while at < len(segments):
            segment = segments[at]
            after = segments[at + 1].base_offset if at + 1 < len(segments) else None
            size = segment.size
            try:
                log_end = recover_segment(
                    segment,
                    self._limit if after is None else after,
                    self._config.index_interval_bytes,
                    note,
                    self._on_bytes,
                    self._options.recovery_point,
                    may_have_gaps=self._options.may_have_gaps,
                )
            except SegmentOverflowError as overflow:
                segments[at : at + 1] = pieces = self._split(segment, overflow.pieces)
                for piece in pieces:
                    aborted.split(piece)
                continue
            aborted.finish(segment, log_end)
            self._recovered += 1
            at += 1
            if segment.size < size or self._is_cut_short(log_end, segments[at] if at < len(segments) else None):
                self._truncated_bytes += size - segment.size
                self._drop_behind(segments, at)
                break
            if after is not None:
                log_end = after
        log = self._make_log(topic_id, segments, log_start, log_end, self._options.recovery_point, snapshots)
        log.durability.gaps_end = self._gaps_end
        log.durability.has_unflushed_sealed_segments = self._gaps_end > log.recovery_point
        _note_epochs(log, epochs, segments[first].base_offset)
        if known_end <= log_end:
            producers.map_end_offset = log_end
            log.producers.use(producers)
        # Otherwise the snapshot includes batches that are gone, so use an older one.
        _ = log.producer_state  # built now rather than on the first append
        return log

    def _first_to_recover(self, segments: list[LogSegment]) -> int:
        return segment_index(segments, min(self._options.recovery_point, segments[-1].base_offset))

    def _producers_before(self, segments: list[LogSegment], first: int, snapshots: list[int]) -> ProducerStateManager:
        """The producers as of the start of segment number `first`, or of a later snapshot."""
        state = ProducerStateManager(self._file_system, self._path, str(self._topic_partition), snapshots)
        # Skip later snapshots: a power cut can restore those that a truncation removed, and the segment is read from
        # its start anyway to find its transactions. But the snapshot at the log start is the only record of earlier
        # producers.
        load_producers(state, segments[:first], segments[0].base_offset, segments[first].base_offset)
        return state

    def _is_cut_short(self, end: int, following: LogSegment | None) -> bool:
        """Whether a sealed segment lost its tail: a power cut can shorten a file by whole batches.

        In our logs such gaps only occur where the skipped offsets exceed the range of an index; Kafka's logs may have
        others.
        """
        if following is None or not 0 < following.base_offset - end <= MAX_RELATIVE_OFFSET:
            return False
        if self._options.may_have_gaps:
            self._gaps_end = following.base_offset
            return False
        header = following.file.pread(0, HEADER_BYTES)
        is_far = len(header) == HEADER_BYTES and (
            RecordBatch(memoryview(header)).last_offset - end > MAX_RELATIVE_OFFSET
        )
        return not is_far

    def _drop_behind(self, segments: list[LogSegment], at: int) -> None:
        """Drop the segments after a torn batch for good, like `LogSegment.truncate_file`: the records before them are
        unknown.
        """
        self._truncated_bytes += sum(segment.size for segment in segments[at:])
        self._drop(segments[at:])
        if len(segments) > at:
            self._file_system.sync_dir(self._path)
        del segments[at:]

    def _drop(self, segments: list[LogSegment]) -> None:
        for segment in segments:
            paths = segment.change_suffix(DELETED_SUFFIX)
            self._directory.deferred_deletions.append(
                DeferredDeletion(paths, is_tree=False, delay_ms=self._config.file_delete_delay_ms, readers=(segment,))
            )


def _note_epochs(log: UnifiedLog, found: Sequence[EpochEntry], from_offset: int) -> None:
    """Add to `log` the epochs `found` in batches from `from_offset` on."""
    epochs = log.leader_epochs
    if found and found[-1].epoch < epochs.latest_epoch:
        # A power cut can undo a truncation but keep the epoch that was to begin there.
        epochs.truncate_from_end(from_offset)
    for epoch, offset in found:
        if epoch > epochs.latest_epoch:
            epochs.assign(epoch, offset)


def _lacks_indexes(segment: LogSegment, files: Mapping[str, FileInfo]) -> bool:
    for suffix, width in ((OFFSET_INDEX_SUFFIX, 8), (TIME_INDEX_SUFFIX, 12)):
        info = files.get(file_name(segment.base_offset, suffix))
        if info is None or info.size % width if segment.size else info is not None and info.size:
            return True
    return False
