"""The aborted transactions of a log, which read_committed readers have to be told (Kafka class `TransactionIndex`).

This broker writes no transactions yet; logs that a Kafka broker has written may hold some, and what was aborted there
must not be taken for committed here.
"""

from __future__ import annotations

from collections.abc import Sequence

from protocol.errors import ApiError, ErrorCode
from storage.file_system import FileSystem
from storage.log_files import TXN_INDEX_SUFFIX
from storage.segment_search import segment_index
from storage.transaction_index import AbortedTxn, encode_aborted
from storage.unified_log import UnifiedLog


def read_aborted(log: UnifiedLog) -> list[AbortedTxn]:
    """Those of all segments, in the order of their markers. May wait for the disk, on any thread.

    Raises ApiError CORRUPT_MESSAGE when a file cannot be understood, KAFKA_STORAGE_ERROR.
    """
    try:
        return [each for segment in list(log.segments) for each in segment.read_aborted()]
    except OSError as error:
        doing = f"Error while reading the aborted transactions of {log.topic_partition}"
        raise log.directory.fail(error, doing) from error
    except ValueError as error:
        raise ApiError(ErrorCode.CORRUPT_MESSAGE, str(error)) from error


def copy_aborted(file_system: FileSystem, log: UnifiedLog, future: UnifiedLog) -> None:
    """Give the segments of `future`, which holds the same batches, the entries that belong to them; they are on stable
    storage when this returns. Raises as `read_aborted`.
    """
    by_path: dict[str, list[AbortedTxn]] = {}
    for each in read_aborted(log):
        segment = future.segments[segment_index(future.segments, each.last_offset)]
        by_path.setdefault(segment.path_of(TXN_INDEX_SUFFIX), []).append(each)
    try:
        for path, entries in by_path.items():
            file_system.write_file(path, encode_aborted(entries))
            file_system.sync_file(path)
    except OSError as error:
        raise future.failed(
            error, f"Error while writing the aborted transactions of {future.topic_partition}"
        ) from error


class AbortedTransactions:
    """Those of one log at a time, read from its `.txnindex` files when `learn` is called, and kept.

    They hold until the log is truncated or has segments replaced: a cleaner drops records with their markers, and a
    reader that is told of a transaction without a marker would drop the producer's next one too.
    """

    __slots__ = ("_as_of", "_known")

    def __init__(self) -> None:
        self._as_of: tuple[UnifiedLog, int, int] | None = None
        self._known: tuple[AbortedTxn, ...] = ()

    def are_known(self, log: UnifiedLog) -> bool:
        """Whether `between` can be asked about `log`."""
        as_of = self._as_of
        return as_of is not None and as_of[0] is log and as_of[1:] == (log.replacements, log.truncations)

    def learn(self, log: UnifiedLog) -> None:
        """Read them. May wait for the disk, on any thread. Raises as `read_aborted`."""
        as_of = log, log.replacements, log.truncations
        self._known = tuple(read_aborted(log))
        self._as_of = as_of

    def between(self, log: UnifiedLog, start_offset: int, end_offset: int) -> Sequence[AbortedTxn]:
        """Those that a reader of the records from `start_offset` to before `end_offset` may meet in the one segment
        that it is given records of, in the order of their markers.
        """
        known = self._known
        if not known:
            return ()
        behind = segment_index(log.segments, start_offset) + 1
        if behind < len(log.segments):
            end_offset = min(end_offset, log.segments[behind].base_offset)
        return [each for each in known if each.last_offset >= start_offset and each.first_offset < end_offset]
