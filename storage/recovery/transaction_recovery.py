"""Rebuilds the transaction index of a segment from its batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from protocol.records.batch import RecordBatch
from storage.io.file_system import FileInfo, FileSystem
from storage.log.log_producers import load_producers
from storage.log.producer_state import ProducerStateManager
from storage.segment.log_files import TXN_INDEX_SUFFIX, file_name
from storage.segment.log_segment import LogSegment
from storage.segment.segment_search import headers_from
from storage.segment.transaction_index import ENTRY_BYTES, AbortedTxn, aborted_by


class AbortedTransactionsFound:
    """Gathers the aborted transactions while recovery shows it the batches of one segment after the other."""

    def __init__(self, producers: ProducerStateManager, files: Mapping[str, FileInfo]) -> None:
        """`producers` as of the first batch that is shown; `files` of the log's directory."""
        self._producers = producers
        self._sizes = {name: info.size for name, info in files.items() if name.endswith(TXN_INDEX_SUFFIX)}
        self._found: list[AbortedTxn] = []

    def note(self, batch: RecordBatch) -> None:
        """Take the next batch with a producer id; a control batch comes with its records."""
        completed = self._producers.replay(batch)
        entry = None if completed is None else aborted_by(batch, completed)
        if entry is not None:
            self._found.append(entry)

    def split(self, segment: LogSegment) -> None:
        """The segment came out of another one, with a part of its index."""
        self._sizes[file_name(segment.base_offset, TXN_INDEX_SUFFIX)] = -1

    def finish(self, segment: LogSegment, end_offset: int) -> None:
        """All batches of the segment, which ends before `end_offset`, were shown: write its index where it differs.
        Either way it is on stable storage then: what a process that was killed has written need not be. Raises OSError.
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
    """Rebuild the transaction indexes that end within an entry. Gives how many."""
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
