"""Finding and splitting segments that exceed the offset range of their indexes (KAFKA-6264; Kafka:
`LocalLog.splitOverflowedSegment`).

An index holds offsets as distances from the base, in 31 bits. The cleaner of Kafka before 2.0 merged sparse segments of
compacted topics without checking that. Such segments are split before each batch whose offset is too far from the base.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from itertools import chain, pairwise

from protocol.errors import ApiError, ErrorCode
from protocol.records.batch import HEADER_BYTES, RecordBatch
from protocol.value import Value
from storage.io.file_system import FileSystem, is_disk_full
from storage.segment.batch_walk import CorruptRange, Place, walk
from storage.segment.log_segment import MAX_RELATIVE_OFFSET, LogSegment
from storage.segment.segment_files import CLEANED_SUFFIX, LOG_SUFFIX, TXN_INDEX_SUFFIX, file_name
from storage.segment.transaction_index import AbortedTxn, encode_aborted

_COPY_BYTES = 1 << 20
_NO_LIMIT = 2**63 - 1


class Piece(Value):
    """The bytes of a segment from position `start` to `end`, which become a new segment at `base_offset`."""

    base_offset: int
    start: int
    end: int


class SegmentOverflowError(Exception):
    """A segment has offsets too far above its base, and must be split into `pieces`."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        super().__init__(f"to be split into {len(pieces)}")
        self.pieces = pieces


def refuse_overflow(
    segment: LogSegment, position: int, end_offset: int | None, recovery_point: int, *, may_have_gaps: bool
) -> None:
    """Raises SegmentOverflowError if `find_overflow` finds pieces after the batches up to `position`."""
    if position < segment.size:
        pieces = find_overflow(segment, position, end_offset, recovery_point, may_have_gaps=may_have_gaps)
        if pieces:
            raise SegmentOverflowError(pieces)


def find_overflow(
    segment: LogSegment, position: int, end_offset: int | None, recovery_point: int, *, may_have_gaps: bool
) -> list[Piece]:
    """The pieces into which the segment must be split if the batch at `position` is valid except for its distance from
    the base; otherwise empty.

    The CRC does not cover an offset: it is trusted if it fits the batches around it and `end_offset` (the base of the
    next segment, None for the last one). For the last sound batch of a log, `recovery_point` shows whether the log
    reached that far; beyond it, an offset that differs from the expected one in a single byte is treated as damaged.

    A piece begins at its first batch, as in Kafka. Unless the log `may_have_gaps`, it begins where the previous piece
    ended, if that is close enough: recovery would take a gap between them for a loss. Raises OSError.
    """
    header = segment.file.pread(position, HEADER_BYTES)
    if len(header) < HEADER_BYTES or not _is_far(RecordBatch(memoryview(header)), segment.base_offset):
        return []
    pieces: list[Piece] = []
    start, base_offset, next_offset = 0, segment.base_offset, segment.base_offset
    is_found = False
    limit = _NO_LIMIT if end_offset is None else end_offset
    found = walk(segment.file.pread, Place(0, base_offset, -1), segment.size, segment.size, limit)
    for each, following in pairwise(chain(found, [CorruptRange(segment.size, segment.size, limit, limit, "")])):
        if isinstance(each, CorruptRange):
            next_offset = each.end_offset
            continue
        position, batch = each
        is_last = end_offset is None and isinstance(following, CorruptRange) and following.end == segment.size
        if is_last and _is_far(batch, base_offset) and not _has_reached(batch, next_offset, recovery_point):
            break
        is_found = is_found or _is_far(batch, segment.base_offset)
        if position == 0 or _is_far(batch, base_offset):
            if position > 0:
                pieces.append(Piece(base_offset, start, position))
            is_gap_known = may_have_gaps or batch.last_offset - next_offset > MAX_RELATIVE_OFFSET
            start, base_offset = position, batch.base_offset if is_gap_known else next_offset
        next_offset = batch.next_offset
    return [*pieces, Piece(base_offset, start, segment.size)] if is_found else []


def _is_far(batch: RecordBatch, base_offset: int) -> bool:
    return batch.last_offset - base_offset > MAX_RELATIVE_OFFSET


def _has_reached(batch: RecordBatch, next_offset: int, recovery_point: int) -> bool:
    """Whether the offset of the last batch of a log is credible although `next_offset` was expected."""
    if recovery_point > next_offset:
        return recovery_point >= batch.next_offset
    difference = batch.base_offset ^ next_offset
    return sum(byte != 0 for byte in difference.to_bytes(8, "big")) > 1


def split_segment(
    file_system: FileSystem, directory: str, segment: LogSegment, pieces: Sequence[Piece]
) -> list[LogSegment]:
    """Copy `pieces` into segments with the suffix `.cleaned`. Their content, though not their names, is on stable
    storage. The caller that replaces `segment` with them builds their indexes.

    Raises OSError, ApiError KAFKA_STORAGE_ERROR when the disk is full; then it leaves no files.
    """
    names = [f"{directory}/{file_name(piece.base_offset, '')}" for piece in pieces]
    try:
        return [
            _copy(file_system, directory, segment, piece, _aborted_in(segment, number, pieces))
            for number, piece in enumerate(pieces)
        ]
    except OSError as error:
        for name in names:
            for suffix in (LOG_SUFFIX, TXN_INDEX_SUFFIX):
                with contextlib.suppress(OSError):
                    file_system.remove(f"{name}{suffix}{CLEANED_SUFFIX}")
        if not is_disk_full(error):
            raise
        doing = f"{segment.path} has offsets beyond what its indexes can hold, and cannot be split"
        raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"{doing}: {error}") from error


def _copy(
    file_system: FileSystem, directory: str, segment: LogSegment, piece: Piece, aborted: Sequence[AbortedTxn]
) -> LogSegment:
    size = piece.end - piece.start
    new = LogSegment(file_system, directory, piece.base_offset, size, segment.created_ms, suffix=CLEANED_SUFFIX)
    file = file_system.open(new.path)
    try:
        for position in range(piece.start, piece.end, _COPY_BYTES):
            file.append([segment.file.pread(position, min(_COPY_BYTES, piece.end - position))])
        # Retention may use the modification time.
        file_system.set_modified_ms(new.path, segment.modified_ms)
        file.flush()
    finally:
        file.close()
    if aborted:
        path = new.files.path_of(TXN_INDEX_SUFFIX)
        file_system.write_file(path, encode_aborted(aborted))
        file_system.sync_file(path)
    return new


def _aborted_in(segment: LogSegment, number: int, pieces: Sequence[Piece]) -> list[AbortedTxn]:
    """The transaction index entries whose markers are in piece `number`."""
    try:
        found = segment.files.aborted_transactions()
    except ValueError:
        return []
    start = pieces[number].base_offset
    end = pieces[number + 1].base_offset if number + 1 < len(pieces) else _NO_LIMIT
    return [each for each in found if start <= each.last_offset < end]
