"""Compaction of one log: rewriting its segments so that only the newest record of each key stays (Kafka classes
`Cleaner`, `CleanedTransactionMetadata`).

The first pass reads the dirty part and maps every key to its newest offset, until the map is full. The second pass
rewrites all segments up to that point into `.cleaned` files and merges small ones. The log itself is not changed: its
owner does that with `ReplacementTask`, unless the log changed meanwhile.

A marker stays as long as any record of its transaction: a reader that finds records of an aborted transaction without
the marker would take them for committed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

from protocol.records.batch import RecordBatch
from protocol.records.compaction import LatestOffsets, filter_batch, latest_offsets_of, note_keys
from protocol.records.control_records import ControlRecordType
from protocol.records.record_format import CONTROL_FLAG, TRANSACTIONAL_FLAG
from storage.compaction.clean_source import (
    LogCleaningAbortedError,
    SourceSegment,
    TransactionEnds,
    marker_type,
    sources_of,
)
from storage.compaction.clean_task import CleanedGroup, CleanerStats, CleanResult, CleanTask, LastRecord, SegmentSize
from storage.compaction.cleaned_segment import CleanedSegment
from storage.io.file_system import FileInfo, FileSystem
from storage.segment.log_segment import MAX_RELATIVE_OFFSET
from storage.segment.segment_files import (
    CLEANED_SUFFIX,
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    file_name,
)
from storage.segment.transaction_index import AbortedTxn


class CleanedTransactions:
    """Decides which batches of transactions to drop. It must see all batches of a log in order; `take_aborted` returns
    the transaction index of those seen since the last call.
    """

    def __init__(self, ends: TransactionEnds) -> None:
        self._ends = ends
        self._first_offsets: dict[int, int] = {}
        """First offsets of the transactions whose marker was not seen yet, by producer."""
        self._aborted: list[AbortedTxn] = []

    def can_discard(self, batch: RecordBatch) -> bool:
        """Whether the batch can be dropped: it holds records of an aborted transaction, or the marker of a transaction
        that has no records left.
        """
        if batch.is_control:
            return self._can_discard_marker(batch)
        if not batch.is_transactional:
            return False
        self._first_offsets.setdefault(batch.producer_id, batch.base_offset)
        return self._ends.is_aborted(batch)

    def _can_discard_marker(self, batch: RecordBatch) -> bool:
        if batch.count == 0:
            return True
        kind = marker_type(batch)
        if kind not in {ControlRecordType.ABORT, ControlRecordType.COMMIT}:
            return False
        first_offset = self._first_offsets.pop(batch.producer_id, None)
        if first_offset is None:
            return True
        if kind is ControlRecordType.ABORT:
            known = self._ends.indexed(batch)
            if known is None or known.first_offset > first_offset:
                stable = min(self._first_offsets.values(), default=batch.last_offset + 1)
                known = AbortedTxn(batch.producer_id, first_offset, batch.last_offset, stable)
            self._aborted.append(known)
        return False

    def take_aborted(self) -> list[AbortedTxn]:
        """The aborted transactions whose markers stay, each returned once."""
        taken, self._aborted = self._aborted, []
        return taken


_IN_TRANSACTION = TRANSACTIONAL_FLAG | CONTROL_FLAG


def clean(
    file_system: FileSystem, task: CleanTask, throttle: Callable[[int], None] = lambda _bytes: None
) -> CleanResult:
    """Clean the log of `task`. May run in any process, but only once at a time per log.

    `throttle` is called with the number of bytes read or written; it may block, or raise to abort the cleaning. Raises
    ApiError for a log that cannot be cleaned, CORRUPT_MESSAGE (`clean_source.CorruptSegmentError`, naming file and
    position) or INVALID_RECORD, LogCleaningAbortedError when the log changed meanwhile, OSError. After any error no
    `.cleaned` file is left.
    """
    try:
        files = {info.name: info for info in file_system.list_dir(task.path)}
    except FileNotFoundError as error:
        raise LogCleaningAbortedError(f"{task.path} is gone") from error
    for name in files:
        if name.endswith(CLEANED_SUFFIX):
            file_system.remove(f"{task.path}/{name}")
    try:
        return _Cleaner(file_system, task, files, throttle).clean()
    except Exception:
        with contextlib.suppress(OSError):
            for info in file_system.list_dir(task.path):
                if info.name.endswith(CLEANED_SUFFIX):
                    file_system.remove(f"{task.path}/{info.name}")
        raise


class GroupingSize(NamedTuple):
    """The limits for merging segments (bytes)."""

    base_offset: int
    size: int
    offset_index_size: int
    time_index_size: int


def group_by_size(
    segments: Sequence[GroupingSize], max_bytes: int, max_index_bytes: int, first_uncleanable_offset: int
) -> list[int]:
    """How many of the adjacent segments belong in each group (Kafka's `groupSegmentsBySize`).

    A group holds one segment, or as many as together stay within both limits and the offset range of an index.
    """
    counts: list[int] = []
    start = 0
    while start < len(segments):
        first, end = segments[start], start + 1
        size, offset_index, time_index = first.size, first.offset_index_size, first.time_index_size
        while end < len(segments):
            added = segments[end]
            size += added.size
            offset_index += added.offset_index_size
            time_index += added.time_index_size
            # The exact end of a segment is known only after reading it; the base of the next segment is an upper bound.
            after = segments[end + 1].base_offset if end + 1 < len(segments) else first_uncleanable_offset
            is_in_range = added.size == 0 or after - 1 - first.base_offset <= MAX_RELATIVE_OFFSET
            if size > max_bytes or max(offset_index, time_index) > max_index_bytes or not is_in_range:
                break
            end += 1
        counts.append(end - start)
        start = end
    return counts


class _Cleaner:
    """One call of `clean`."""

    def __init__(
        self, file_system: FileSystem, task: CleanTask, files: dict[str, FileInfo], throttle: Callable[[int], None]
    ) -> None:
        self._file_system = file_system
        self._task = task
        self._files = files
        self._throttle = throttle
        self._sources = sources_of(file_system, task)
        self._ends = TransactionEnds(self._sources)
        self._stats = CleanerStats()
        self._latest: dict[bytes, int] = {}
        self._latest_offsets: LatestOffsets | None = None
        self._producers = {producer.producer_id: producer for producer in task.producers}

    def clean(self) -> CleanResult:
        end_offset = self._build_offset_map()
        self._stats.map_keys = len(self._latest)
        self._latest_offsets = latest_offsets_of(self._latest, self._task.first_dirty_offset, end_offset)
        sources = [source for source in self._sources if source.base_offset < end_offset]
        counts = group_by_size(
            [self._grouping_size(source) for source in sources],
            self._task.segment_bytes,
            self._task.segment_index_bytes,
            self._task.first_uncleanable_offset,
        )
        transactions = CleanedTransactions(self._ends)
        groups = []
        for count in counts:
            group = self._clean_segments(sources[:count], end_offset, transactions)
            if group is not None:
                groups.append(group)
            del sources[:count]
        return CleanResult(end_offset, groups, self._stats)

    # -- the first pass -----------------------------------------------------------------------------------------------

    def _build_offset_map(self) -> int:
        """Map the keys from the first dirty offset on. Returns the offset where the map is full or the cleanable part
        ends.
        """
        task, latest = self._task, self._latest
        end_offset = task.first_dirty_offset
        for source in self._sources:
            if source.end_offset <= task.first_dirty_offset:
                continue
            if source.base_offset >= task.first_uncleanable_offset:
                break
            for batch in source.batches(self._read_for_map):
                if batch.last_offset < task.first_dirty_offset:
                    continue
                if not batch.is_control and not (batch.is_transactional and self._ends.is_aborted(batch)):
                    end_offset = note_keys(batch, latest, task.map_capacity, task.first_dirty_offset)
                    if end_offset < batch.next_offset:
                        return end_offset
            end_offset = source.end_offset
        return end_offset

    def _read_for_map(self, size: int) -> None:
        self._stats.map_bytes_read += size
        self._throttle(size)

    # -- the second pass ----------------------------------------------------------------------------------------------

    def _grouping_size(self, source: SourceSegment) -> GroupingSize:
        base_offset = source.base_offset
        sizes = []
        for suffix in (OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX):
            info = self._files.get(file_name(base_offset, suffix))
            sizes.append(0 if info is None else info.size)
        return GroupingSize(base_offset, source.size, *sizes)

    def _clean_segments(
        self, sources: Sequence[SourceSegment], end_offset: int, transactions: CleanedTransactions
    ) -> CleanedGroup | None:
        """Rewrite `sources` into one `.cleaned` segment, or into several where the offset range of an index requires it
        (Kafka splits the source, and cleans it the next time). Returns None when a single source would not change.
        """
        base_offset = sources[0].base_offset
        cleaned = None if len(sources) == 1 else self._new_segment(base_offset)
        targets: list[SegmentSize] = []
        for source in sources:
            for batch in source.batches(self._throttle):
                left = self._filtered(batch, end_offset, transactions)
                is_far = batch.last_offset - base_offset > MAX_RELATIVE_OFFSET
                if cleaned is None and (left is not batch.buffer or is_far):
                    cleaned = self._copy_before(batch.base_offset, source)
                if left is None:
                    continue
                if left is not batch.buffer:
                    batch = RecordBatch(memoryview(left))  # noqa: PLW2901 - the filtered batch
                self._stats.messages_written += batch.count
                if cleaned is not None:
                    if not cleaned.has_range_for(batch):
                        targets.append(self._finish(cleaned, sources[-1], transactions.take_aborted()))
                        cleaned = self._new_segment(batch.base_offset)
                    cleaned.append(batch)
            self._stats.bytes_read += source.size
        aborted = transactions.take_aborted()
        if cleaned is None:
            if not aborted or file_name(base_offset, TXN_INDEX_SUFFIX) in self._files:
                self._stats.bytes_written += sources[0].size
                return None
            cleaned = self._copy_before(sources[0].end_offset, sources[0])
        targets.append(self._finish(cleaned, sources[-1], aborted))
        return CleanedGroup([source.found for source in sources], targets)

    def _finish(
        self, cleaned: CleanedSegment, last_source: SourceSegment, aborted: Sequence[AbortedTxn]
    ) -> SegmentSize:
        info = self._files.get(file_name(last_source.base_offset, LOG_SUFFIX))
        if info is None:
            raise LogCleaningAbortedError(f"{last_source.path} is gone")
        cleaned.finish(aborted, info.modified_ms)
        self._stats.bytes_written += cleaned.size
        return SegmentSize(cleaned.base_offset, cleaned.size)

    def _new_segment(self, base_offset: int) -> CleanedSegment:
        return CleanedSegment(
            self._file_system, self._task.path, base_offset, self._task.index_interval_bytes, self._throttle
        )

    def _copy_before(self, offset: int, source: SourceSegment) -> CleanedSegment:
        """A new segment with the batches of `source` below `offset`, copied unchanged."""
        cleaned = self._new_segment(source.base_offset)
        if offset > source.base_offset:
            for batch in source.batches(self._throttle):
                if batch.base_offset >= offset:
                    break
                cleaned.append(batch)
        return cleaned

    def _filtered(
        self, batch: RecordBatch, end_offset: int, transactions: CleanedTransactions
    ) -> memoryview | bytes | None:
        """The result of `filter_batch`: None, `batch.buffer`, or another batch."""
        task = self._task
        discard = ends_empty_transaction = False
        if batch.attributes & _IN_TRANSACTION:
            discard = transactions.can_discard(batch)
            if batch.is_control:
                # The marker stays until its delete horizon, for readers that have read the dropped records but not the
                # marker.
                ends_empty_transaction = discard
                horizon_ms = batch.delete_horizon_ms
                discard = discard and horizon_ms is not None and horizon_ms <= task.now_ms
        # An empty batch shows the next broker where the cleaned part ends.
        keep_empty = batch.next_offset == task.first_uncleanable_offset or (
            batch.producer_id >= 0 and _is_last_of(batch, self._producers.get(batch.producer_id))
        )
        left = filter_batch(
            batch,
            self._latest,
            end_offset,
            task.now_ms,
            delete_retention_ms=task.delete_retention_ms,
            discard=discard,
            keep_empty=keep_empty,
            ends_empty_transaction=ends_empty_transaction,
            latest_offsets=self._latest_offsets,
        )
        self._stats.messages_read += batch.count
        return left


def _is_last_of(batch: RecordBatch, producer: LastRecord | None) -> bool:
    """Whether the batch holds the last sequence number of its producer or, if it has none, its epoch."""
    if producer is None:
        return False
    if producer.last_data_offset >= 0:
        return batch.last_offset == producer.last_data_offset
    return batch.is_control and batch.producer_epoch == producer.producer_epoch
