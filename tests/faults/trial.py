"""The trial of a broker's logs on one disk: it runs the steps of a scenario and checks the disk after them."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import NamedTuple

from protocol.errors import ApiError, ErrorCode
from protocol.records.batch import Record, RecordBatch, build_batch
from protocol.records.compression import CompressionType
from protocol.records.control_records import ControlRecordType, EndTxnMarker, build_end_txn_marker
from protocol.topic_partition import TopicPartition
from protocol.uuids import Uuid
from storage.log.unified_log import UnifiedLog
from storage.log_config import LogConfig
from storage.log_manager import LogManager
from storage.recovery.log_directory_survey import LoadReport
from storage.segment.batch_reader import header_of
from tests.faults.history import History, Observation, Violation
from tests.faults.rows import ProducerState, Row, rows_of
from tests.kit.environment import uuid_of
from tests.kit.memory_file_system import MemoryFileSystem
from tests.storage.support import DIR, T0, TP, open_manager, read_all

OTHER = TopicPartition("other", 3)
NEIGHBOUR_START = 3
"""The log start of the second topic once its first records were deleted."""


class Spec(NamedTuple):
    """A batch to build: values of `size` bytes, and optionally one key for each record."""

    values: int = 1
    size: int = 40
    codec: CompressionType = CompressionType.NONE
    producer_id: int = -1
    keys: tuple[bytes, ...] = ()
    deltas: tuple[int, ...] = ()
    """Offsets added to the timestamps of the records (ms)."""
    is_tombstone: bool = False
    is_transactional: bool = False
    marker: ControlRecordType | None = None
    """A transaction marker instead of values."""

    @property
    def is_idempotent(self) -> bool:
        """Whether a repeated batch is answered as a duplicate."""
        return self.producer_id >= 0 and not self.is_transactional and self.marker is None


@functools.lru_cache(maxsize=4096)
def make_batch(
    spec: Spec, sequence: int, serial: int, timestamp: int, base: int, epoch: int
) -> tuple[bytes, tuple[Row, ...]]:
    """A batch as its producer sends it, and its records at offset `base` in leader epoch `epoch`."""
    if spec.marker is not None:
        end = EndTxnMarker(spec.marker, 0)
        data = build_end_txn_marker(end, timestamp=timestamp, producer_id=spec.producer_id, producer_epoch=0)
        return data, _placed(data, base, epoch)
    records = []
    for at in range(spec.values):
        key = spec.keys[at] if spec.keys else b"key"
        text = b"value %d.%d " % (serial, at)
        value = None if spec.is_tombstone else text + b"." * (spec.size - len(text))
        delta = spec.deltas[at] if spec.deltas else at
        records.append(Record(0, timestamp + delta, key, value))
    has_id = spec.producer_id >= 0
    data = build_batch(
        records,
        compression=spec.codec,
        producer_id=spec.producer_id,
        producer_epoch=0 if has_id else -1,
        base_sequence=sequence if has_id else -1,
        is_transactional=spec.is_transactional,
    )
    return data, _placed(data, base, epoch)


def _placed(data: bytes, base: int, epoch: int) -> tuple[Row, ...]:
    batch = RecordBatch(memoryview(bytearray(data)))
    batch.assign_offsets(base, epoch)
    return tuple(rows_of(batch))


@dataclass
class Neighbour:
    """The possible files of a second topic, which is deleted and recreated. Generations number the topics with its
    name.
    """

    there: frozenset[int] = frozenset()
    """The generations that the next process may find, ..."""
    may_be_missing: bool = True
    """... if any."""
    returning: frozenset[int] = frozenset()
    """The generations that a power cut may bring back."""
    generation: int = 0
    """The last one."""
    written: dict[int, tuple[Row, ...]] = field(default_factory=dict)
    """The rows appended to each generation."""
    flushed_end: int = 0
    """The last generation is on stable storage up to this offset."""
    shortened: frozenset[int] = frozenset()
    """The generations whose first records were deleted."""
    deleted: frozenset[int] = frozenset()
    """The generations whose files are being removed, in any order."""

    @property
    def topic_id(self) -> Uuid:
        return uuid_of(self.generation)

    def writing(self, rows: tuple[Row, ...]) -> None:
        """These rows are about to be appended, and earlier unaccepted ones are not."""
        before = (row for row in self.written.get(self.generation, ()) if row.offset < rows[0].offset)
        self.written = {**self.written, self.generation: (*before, *rows)}

    def believe(self, found: UnifiedLog | None, *, lost_power: bool) -> None:
        """Compare the files with the allowed contents, and assume what was found. Raises Violation."""
        allowed = self.there | self.returning if lost_power else self.there
        if found is None:
            if not self.may_be_missing:
                raise Violation("the second partition is gone")
            self.there = frozenset()
        else:
            generation = max(allowed, default=0) if found.topic_id is None else int.from_bytes(found.topic_id, "big")
            if generation not in allowed:
                raise Violation(f"the second partition is number {generation}, which is not one of {sorted(allowed)}")
            if generation != self.generation:
                self.generation, self.flushed_end = generation, 0
            self._check_content(found)
            self.there = frozenset({generation})
        if lost_power:
            self.returning = frozenset()

    def _check_content(self, found: UnifiedLog) -> None:
        start, end = found.log_start_offset, found.log_end_offset
        written = self.written.get(self.generation, ())
        if self.generation in self.deleted:
            if not set(rows_in(found)) <= set(written):
                raise Violation(f"the second partition has records that are not of number {self.generation}")
            return
        if start not in ({0, NEIGHBOUR_START} if self.generation in self.shortened else {0}):
            raise Violation(f"the second partition starts at {start}")
        if end < self.flushed_end:
            raise Violation(f"the second partition ends at {end}, and was flushed to {self.flushed_end}")
        there = [row for row in rows_in(found) if row.offset >= start]
        wanted = [row for row in written if start <= row.offset < end]
        for row, other in zip_longest(there, wanted):
            if row != other:
                raise Violation(f"the second partition has {row}, not {other}")


class Trial:
    """A broker's logs from the first start to their end, in one scenario.

    Steps call storage through `attempt`: it tolerates storage errors only; anything else is a violation.
    """

    def __init__(self, file_system: MemoryFileSystem, config: LogConfig, directories: Sequence[str] = (DIR,)) -> None:
        self.file_system = file_system
        self.config = config
        self.directories = tuple(directories)
        self.manager: LogManager | None = None
        self.log: UnifiedLog | None = None
        self.history = History(is_compacted=config.is_compacted)
        self.neighbour = Neighbour()
        self.now_ms = T0
        self.epoch = 0
        self.serial = 0
        self.high_watermark = 0
        self.lag = 1
        self.may_be_clean = False
        self.may_have_strays = False
        self.disk_stays_full = False
        """Whether even a removal may be refused; the next start then finds the deleted files, without a topic."""
        self.lost_power = False
        """Whether the last process ended with a power cut."""

    def fork(self) -> Trial:
        """A copy of the trial after the end of its process, to try several endings."""
        twin = copy.copy(self)
        twin.file_system = self.file_system.copy()
        twin.history = copy.deepcopy(self.history)
        twin.neighbour = replace(self.neighbour)
        twin.manager = twin.log = None
        return twin

    # -- asking -------------------------------------------------------------------------------------------------------

    def attempt(self, action: Callable[[], object]) -> bool:
        """Whether `action` succeeded."""
        try:
            action()
        except ApiError as error:
            if error.error_code is not ErrorCode.KAFKA_STORAGE_ERROR:
                raise
            return False
        return True

    def is_online(self) -> bool:
        """Whether a log exists in a working directory."""
        return self.log is not None and self.log.directory.failure is None

    def may_go_on_after(self, path: str) -> bool:
        """Whether the directory of `path` still works, though a call on the path failed."""
        return self.manager is not None and any(
            directory.failure is None for directory in self.manager.directories if path.startswith(directory.path)
        )

    def place(self, spec: Spec) -> tuple[memoryview, tuple[Row, ...]]:
        """The next batch of this kind, and the records it becomes."""
        self.serial += 1
        self.now_ms += 1
        sequence = self.history.next_sequence(spec.producer_id) if spec.producer_id >= 0 else -1
        data, rows = make_batch(spec, sequence, self.serial, self.now_ms, self.history.end, self.epoch)
        return memoryview(bytearray(data)), rows

    def end_process(self) -> None:
        """End the process; faults of the disk for the next one remain."""
        inject = self.file_system.inject
        self.file_system.kill_process()
        self.file_system.inject = inject
        self.manager = self.log = None

    @contextmanager
    def in_peace(self) -> Iterator[None]:
        """Exclude the calls of a block from the trial: they are not counted, and never fail."""
        inject = self.file_system.inject
        self.file_system.inject = lambda _operation, _path: None
        try:
            yield
        finally:
            self.file_system.inject = inject

    def claim(self) -> None:
        """Record the log's recovery point, so that the data below it must survive."""
        if self.log is not None:
            self.history.claimed(self.log.recovery_point)

    # -- starting and looking -----------------------------------------------------------------------------------------

    def load(self, file_system: MemoryFileSystem) -> tuple[LogManager, LoadReport]:
        """Load the logs on `file_system` like the next process. Raises LogDirError."""
        return open_manager(file_system, self.config, *self.directories, now_ms=self.now_ms)

    def settle(self) -> None:
        """Load what the next process will find, compare it with the history, and assume it."""
        twin = self.file_system.copy()
        manager, report = self.load(twin)
        self.check_report(manager, report)
        self.believe(manager)

    def check_report(self, manager: LogManager, report: LoadReport) -> None:
        """No kind of end makes a log unusable, and only a clean shutdown looks clean."""
        # A copy can outlive a log that was never flushed; it is set aside for good.
        self.may_have_strays = self.may_have_strays or (self.lost_power and self.history.now.flushed_end == 0)
        ignored = [
            line
            for line in report.ignored
            if not line.startswith("Resetting first dirty offset")
            and not (self.may_have_strays and line.endswith("-stray"))
        ]
        if report.refused or ignored:
            raise Violation(f"refused: {report.refused}, ignored: {ignored}")
        failures = [directory.failure for directory in manager.directories if directory.failure]
        if failures:
            raise Violation(f"offline after a start without faults: {failures}")
        if report.clean and not self.may_be_clean:
            raise Violation("the last run did not end in order, and looks clean")

    def believe(self, manager: LogManager) -> None:
        log = manager.get(TP)
        history = self.history
        if log is None:
            if self.lost_power and history.now.flushed_end == 0:
                self.history = History(is_compacted=self.config.is_compacted)
            elif history.now.acked_end > 0 or history.start_asked > 0:
                raise Violation("the partition is gone")
        else:
            history.reconcile(observe(log, manager.checkpoints.high_watermarks.get(TP, 0)), lost_power=self.lost_power)
            corruptions = [what for each in manager.directories for what in each.corruptions.values()]
            if corruptions:
                raise Violation(f"taken for damaged: {corruptions}")
        self.neighbour.believe(manager.get(OTHER), lost_power=self.lost_power)

    def check_live(self) -> None:
        """Check that the log serves the acknowledged records."""
        if self.log is not None and self.is_online():
            with self.in_peace():
                self.history.must_equal(observe(self.log, 0))


def rows_in(log: UnifiedLog) -> list[Row]:
    """The records that the log serves, including those in the same batch below its start."""
    return [row for batch in read_all(log) for row in rows_of(batch)]


def observe(log: UnifiedLog, high_watermark: int) -> Observation:
    """The visible state of the log."""
    start = log.log_start_offset
    rows = [row for row in rows_in(log) if row.offset >= start]
    producers = {}
    for producer_id, entry in log.producer_state.entries.items():
        last = entry.batches[-1].last_offset if entry.batches else -1
        producers[producer_id] = ProducerState(entry.producer_epoch, entry.last_sequence, last)
    return Observation(
        start,
        log.log_end_offset,
        log.segments[0].base_offset,
        tuple(rows),
        tuple(log.leader_epochs.entries),
        producers,
        high_watermark,
    )


def check_indexes(log: UnifiedLog) -> None:
    """Every index entry is valid, like in `kafka-dump-log --index-sanity-check`. Raises Violation."""
    for segment in log.segments:
        batches = {found[0]: header_of(found) for found in segment.batches.headers()}
        ends = {batch.last_offset for batch in batches.values()}
        for at in range(len(segment.files.offset_index)):
            offset, position = segment.files.offset_index.entry(at)
            if position not in batches or batches[position].base_offset > offset or offset not in ends:
                raise Violation(f"{segment}: index entry {at} ({offset}, {position}) is not true")
        largest = -1
        stamps = {-1}
        for at in range(len(segment.files.time_index)):
            timestamp, offset = segment.files.time_index.entry(at)
            stamps = {batch.max_timestamp for batch in batches.values() if batch.last_offset <= offset}
            if timestamp <= largest or timestamp != max(stamps, default=-1):
                raise Violation(f"{segment}: time index entry {at} ({timestamp}, {offset}) is not true")
            largest = timestamp
