"""Repair after a crash: a segment, batch by batch up to the first incomplete or damaged one (Kafka's
`LogSegment.recover`), its transaction index, and interrupted replacements of segments.

A start after a crash spends its time in this loop, so the only object per batch is the tuple of its fields.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, pairwise

from protocol.errors import ApiError
from protocol.records.batch import HEADER_BYTES, RecordBatch
from storage.io.file_system import FileInfo, FileSystem
from storage.log.producer_state import ProducerStateManager, load_producers
from storage.recovery.segment_split import refuse_overflow
from storage.segment.batch_reader import BASE_OFFSET, HEADERS, LAST_OFFSET_DELTA, SOUND, BatchReader, Found
from storage.segment.batch_walk import UNKNOWN_EPOCH, CorruptRange, Place, walk
from storage.segment.indexes import IndexBuilder
from storage.segment.log_segment import MAX_RELATIVE_OFFSET, LogSegment, headers_from
from storage.segment.segment_files import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    SWAP_SUFFIX,
    TXN_INDEX_SUFFIX,
    file_name,
)
from storage.segment.transaction_index import ENTRY_BYTES, AbortedTxn, aborted_by


def recover_segment(
    segment: LogSegment,
    end_offset: int | None,
    index_interval_bytes: int,
    on_batch: Callable[[RecordBatch], None],
    on_bytes: Callable[[int], None],
    recovery_point: int = 0,
    *,
    may_have_gaps: bool = True,
) -> int:
    """Walk all batches of `segment`, rebuild its indexes and cut the file after the last valid batch; returns the next
    offset.

    Batches below `recovery_point` were on stable storage, so damage there is not a torn end: the segment continues
    after such a `CorruptRange`, and the log does not end before `recovery_point`.

    A batch is valid if size, magic and CRC match. The CRC does not cover all fields, so offsets must also ascend from
    the base offset and stay below `end_offset` (the base of the next segment), and leader epochs must be consistent
    below `recovery_point`. `on_batch` gets each valid batch that begins a leader epoch or has a producer id (at least
    its header, control batches whole), `on_bytes` the number of bytes read.

    Raises OSError; SegmentOverflowError when the segment must be split first (`find_overflow` gets `may_have_gaps`).
    """
    if segment.size == 0:
        return segment.base_offset  # thousands of partitions may be empty: do not open their files
    builder = IndexBuilder(segment.base_offset, index_interval_bytes)
    add = builder.add_batch
    next_offset, valid_bytes, latest_epoch = segment.base_offset, 0, -1
    limit = segment.base_offset + MAX_RELATIVE_OFFSET + 1
    if end_offset is not None:
        limit = min(limit, end_offset)
    for position, size, window, at, fields in _valid_batches(segment, limit, recovery_point, on_bytes):
        base_offset, _, epoch, _, _, delta, max_timestamp, producer_id = fields
        last_offset = base_offset + delta
        if (
            base_offset > next_offset
            and next_offset + delta + 1 == recovery_point
            and position + size == segment.size
            and end_offset is None
        ):
            # The last batch has no successor that would expose a raised offset, but the flushed log end does.
            limit = recovery_point
            break
        if producer_id >= 0 or epoch > latest_epoch:
            latest_epoch = max(latest_epoch, epoch)
            on_batch(_readable(segment, position, RecordBatch(window[at : at + size])))
        add(last_offset, max_timestamp, size, position)
        next_offset = last_offset + 1
        valid_bytes = position + size
    refuse_overflow(segment, valid_bytes, end_offset, recovery_point, may_have_gaps=may_have_gaps)
    corrupt_ranges: list[CorruptRange] = []
    if next_offset < recovery_point and valid_bytes < segment.size:
        place = Place(valid_bytes, next_offset, latest_epoch)
        valid_bytes, next_offset, corrupt_ranges = _recover_after_damage(
            segment, place, limit, end_offset, recovery_point, builder, on_batch
        )
    segment.truncate_file(valid_bytes)
    segment.use_indexes(builder)
    segment.batches.take_checked(tuple(corrupt_ranges))
    return next_offset


def _recover_after_damage(
    segment: LogSegment,
    place: Place,
    limit: int,
    end_offset: int | None,
    recovery_point: int,
    builder: IndexBuilder,
    on_batch: Callable[[RecordBatch], None],
) -> tuple[int, int, list[CorruptRange]]:
    """Recover the sound batches after the damaged one at `place`, as far as they were on stable storage. Returns the
    position and the offset where the segment ends, and the corrupt ranges before that. The other arguments are those of
    `recover_segment`.
    """
    valid_bytes, next_offset = place.position, place.next_offset
    corrupt_ranges: list[CorruptRange] = []
    found = walk(segment.file.pread, place, segment.size, segment.size, limit)
    rest = CorruptRange(segment.size, segment.size, recovery_point, recovery_point, "")
    for each, following in pairwise(chain(found, [rest])):
        if isinstance(each, CorruptRange):
            if each.first_offset >= recovery_point:
                break
            if each.end == segment.size:
                next_offset = recovery_point if end_offset is None else end_offset
            corrupt_ranges.append(each if each.end < segment.size else each._replace(end_offset=next_offset))
            valid_bytes = each.end
        else:
            position, batch = each
            is_last = end_offset is None and isinstance(following, CorruptRange) and following.end == segment.size
            if is_last and position == valid_bytes and next_offset < min(batch.base_offset, recovery_point):
                # As in `recover_segment`: the log ended at the recovery point, so this batch has changed since.
                is_raised = next_offset + batch.last_offset_delta < recovery_point < batch.next_offset
                if is_raised and not (corrupt_ranges and corrupt_ranges[-1].end == position):
                    reason = f"offsets {batch.base_offset} to {batch.last_offset} where {next_offset} was due"
                    corrupt_ranges.append(CorruptRange(position, segment.size, next_offset, recovery_point, reason))
                    valid_bytes, next_offset = segment.size, recovery_point
                    break
            on_batch(_readable(segment, position, batch))
            builder.add(batch, position)
            next_offset, valid_bytes = batch.next_offset, position + batch.size_in_bytes
    return valid_bytes, next_offset, corrupt_ranges


def _readable(segment: LogSegment, position: int, batch: RecordBatch) -> RecordBatch:
    """The batch at `position`; a control batch in a buffer of exactly its size, so that its record can be decoded."""
    if not batch.is_control:
        return batch
    size = batch.size_in_bytes
    if len(batch.buffer) < size:
        return segment.batches.read_batch(position, size)
    return RecordBatch(batch.buffer[:size])


def _valid_batches(
    segment: LogSegment, limit: int, recovery_point: int, on_bytes: Callable[[int], None]
) -> Iterator[Found]:
    """The batches up to the first that is damaged, or whose offsets do not ascend or are not below `limit`. The last
    batch before it is left out if that one alone is, or may be, the wrong one.

    A flipped bit can raise the base offset of a batch. The batch then seems to skip offsets that its successor has. If
    the successor is damaged too and lies below `recovery_point`, the batches after it decide. Below `recovery_point`, a
    batch is also invalid if both neighbours share another leader epoch.
    """
    held: Found | None = None
    changer: Found | None = None  # the first batch of the epoch of `held`, which followed `epoch_before`
    held_epoch = epoch_before = UNKNOWN_EPOCH
    held_first = held_last = -1
    first_offset = due = segment.base_offset
    reader = BatchReader(segment.path, segment.file.pread, segment.size, SOUND, on_bytes)
    for batch in reader.batches(0):
        first, _, epoch, _, _, delta, _, _ = batch[4]
        last = first + delta
        if not first_offset <= first <= last < limit:
            break
        if held is not None:
            if first <= held_last:
                if first < due or held_first == due:
                    yield held
                return
            if epoch != held_epoch and held is changer and epoch == epoch_before and due < recovery_point:
                return
            yield held
            due = held_last + 1
        if epoch != held_epoch:
            changer, epoch_before, held_epoch = batch, held_epoch, epoch
        held, held_first, held_last = batch, first, last
    else:
        if reader.fault is not None and (held_first > due or held is changer) and due < recovery_point:
            return
    if held is not None:
        yield held


class AbortedTransactionsFound:
    """Collects the aborted transactions while recovery reads one segment after the other."""

    def __init__(self, producers: ProducerStateManager, files: Mapping[str, FileInfo]) -> None:
        """`producers` is the state before the first batch; `files` are those of the log's directory."""
        self._producers = producers
        self._sizes = {name: info.size for name, info in files.items() if name.endswith(TXN_INDEX_SUFFIX)}
        self._found: list[AbortedTxn] = []

    def note(self, batch: RecordBatch) -> None:
        """Process the next batch with a producer id; a control batch must include its record."""
        completed = self._producers.replay(batch)
        entry = None if completed is None else aborted_by(batch, completed)
        if entry is not None:
            self._found.append(entry)

    def split(self, segment: LogSegment) -> None:
        """Note that the segment was split off another one, with a part of its index."""
        self._sizes[file_name(segment.base_offset, TXN_INDEX_SUFFIX)] = -1

    def finish(self, segment: LogSegment, end_offset: int) -> None:
        """Finish the segment that ends before `end_offset`: write its index if it differs. The index is fsynced either
        way, because a killed process may have written it without fsync. Raises OSError.
        """
        entries = [each for each in self._found if each.last_offset < end_offset]
        self._found = [each for each in self._found if each.last_offset >= end_offset]
        size = self._sizes.get(file_name(segment.base_offset, TXN_INDEX_SUFFIX), 0)
        if not entries and not size:
            return
        index = segment.files.transactions
        if size != len(entries) * ENTRY_BYTES or _entries_of(segment) != entries:
            index.replace(entries)
        else:
            segment.files.file_system.sync_file(index.path)


def _entries_of(segment: LogSegment) -> list[AbortedTxn] | None:
    try:
        return list(segment.files.aborted_transactions())
    except ValueError:
        return None


def rebuild_torn_indexes(
    file_system: FileSystem,
    name: str,
    segments: Sequence[LogSegment],
    snapshots: Sequence[int],
    files: Mapping[str, FileInfo],
) -> int:
    """Rebuild the transaction indexes that end within an entry. Returns their number."""
    count = 0
    for at, segment in enumerate(segments):
        info = files.get(file_name(segment.base_offset, TXN_INDEX_SUFFIX))
        if info is None or info.size % ENTRY_BYTES == 0:
            continue
        begin, start = segments[0].base_offset, segment.base_offset
        directory = segment.path.rpartition("/")[0]
        usable = [offset for offset in snapshots if begin <= offset <= start]
        producers = ProducerStateManager(file_system, directory, name, usable)
        load_producers(producers, list(segments[:at]), begin, start)
        found = AbortedTransactionsFound(producers, files)
        for batch in headers_from([segment], start):
            found.note(batch)
        found.finish(segment, 2**63 - 1)
        count += 1
    return count


_SEGMENT_FILE = re.compile(r"(\d{20})(\.[a-z]+)")
_LOG_FILE = re.compile(r"\d{20}\.log")


def finish_interrupted_swaps(file_system: FileSystem, path: str, files: dict[str, FileInfo]) -> dict[str, FileInfo]:
    """Resolve the `.deleted`, `.cleaned` and `.swap` files in the directory of a log at `path`, which holds `files`;
    returns the remaining files.

    `.cleaned`: compaction had not finished, so the file is removed. `.swap`: it had, so the new segments replace those
    in their offset range. A `.swap` at or above a `.cleaned` belongs to an unfinished split (KAFKA-6264) and is
    removed.
    """
    leftovers = [name for name in files if name.endswith((DELETED_SUFFIX, CLEANED_SUFFIX, SWAP_SUFFIX))]
    if not leftovers:
        return files
    cleaned = [int(name[:20]) for name in leftovers if name.endswith(CLEANED_SUFFIX)]
    first_cleaned = min(cleaned, default=2**63 - 1)
    for name in leftovers:
        if not name.endswith(SWAP_SUFFIX) or int(name[:20]) >= first_cleaned:
            file_system.remove(f"{path}/{name}")
            del files[name]
    swaps = sorted(name for name in files if name.endswith(LOG_SUFFIX + SWAP_SUFFIX))
    if swaps:
        first, end = int(swaps[0][:20]), int(swaps[-1][:20]) + 1
        for name in swaps:
            file = file_system.attach(f"{path}/{name}", files[name].size)
            # The split segment may be damaged. Then its pieces replace only that segment.
            with contextlib.suppress(ApiError):
                for *_, fields in BatchReader(file.path, file.pread, file.size, HEADERS).batches(0):
                    end = max(end, fields[BASE_OFFSET] + fields[LAST_OFFSET_DELTA] + 1)
        first = _first_replaced(file_system, path, files, first)
        for name in list(files):
            match = _SEGMENT_FILE.fullmatch(name)
            if match and match[2] != SNAPSHOT_SUFFIX and first <= int(match[1]) < end:
                file_system.remove(f"{path}/{name}")
    # Rename the `.log` first, as compaction does: if it is gone, the remaining `.swap` files belong to the renamed
    # segment.
    for name in swaps + [name for name in files if name.endswith(SWAP_SUFFIX) and name not in swaps]:
        file_system.rename(f"{path}/{name}", f"{path}/{name.removesuffix(SWAP_SUFFIX)}")
    file_system.sync_dir(path)
    return {info.name: info for info in file_system.list_dir(path) if not info.is_dir}


def _first_replaced(file_system: FileSystem, path: str, files: dict[str, FileInfo], first: int) -> int:
    """The base of the first segment that `.swap` segments from offset `first` on replace. A split segment may have a
    lower base, because its first piece is named after its first batch.
    """
    below = max((name for name in files if _LOG_FILE.fullmatch(name) and int(name[:20]) < first), default=None)
    if below is not None:
        file = file_system.attach(f"{path}/{below}", files[below].size)
        header = file.pread(0, HEADER_BYTES)
        file.close()
        if len(header) == HEADER_BYTES and RecordBatch(memoryview(header)).base_offset == first:
            return int(below[:20])
    return first
