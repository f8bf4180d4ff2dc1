"""Faults of a machine's disk: calls that fail, a full disk, and bits that flip in stored data."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Iterator
from random import Random
from typing import NamedTuple

from protocol.records.batch import HEADER_BYTES, RecordBatch
from protocol.topic_partition import TopicPartition
from storage.directory.checkpoints import (
    HIGH_WATERMARK_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    read_offset_checkpoint,
)
from tests.kit.memory_disk import Inode
from tests.kit.memory_file_system import Fault
from tests.simulation.world import Machine, World

_NEVER_FAIL = frozenset({"exists", "disk_space", "attach"})
_CRC_ENDS_AT = 21


class _Found(NamedTuple):
    """A batch of the log `name` at `position` of a file, with that log's offsets in the checkpoints."""

    name: str
    inode: Inode
    position: int
    batch: RecordBatch
    recovery_point: int
    high_watermark: int


class DiskFaults:
    """The faults of one machine's disk. `later(least_s, most_s, what)` schedules an event on the machine."""

    def __init__(
        self,
        world: World,
        machine: Machine,
        rng: Random,
        later: Callable[[float, float, Callable[[], None]], None],
        cut_power: Callable[[], bool],
    ) -> None:
        """`cut_power` cuts the machine's power, and restarts it later; it returns false if the power must stay on."""
        self._world = world
        self._machine = machine
        self._rng = rng
        self._later = later
        self._cut_power = cut_power

    def heal(self) -> None:
        """End the disk's failures, and free its space."""
        self._machine.disk.inject = lambda _operation, _path: None
        self._machine.disk.faults_in_reads = False
        self._machine.disk.capacity_bytes = None

    def fail(self) -> bool:
        """Fail one of the next calls in a log directory with EIO, or it and all later ones. The process that meets the
        error is replaced later, unless it exits by itself; the disk works for the next one.
        """
        machine, rng = self._machine, self._rng
        if not machine.is_up:
            return False
        directory = rng.choice(machine.log_dirs)
        left = rng.randint(1, 60)
        written_bytes = rng.choice([0, 1, 100, 10_000])
        goes_on = rng.random() < 0.5
        process = machine.process
        loses_power = rng.random() < 0.3

        def end() -> None:
            if machine.process is not process or not machine.is_up:
                return
            if not loses_power or not self._cut_power():
                machine.kill()
                self._later(0.02, 1.0, machine.start)

        def inject(operation: str, path: str) -> Fault | None:
            nonlocal left
            if operation in _NEVER_FAIL or not (path == directory or path.startswith(f"{directory}/")):
                return None
            left -= 1
            if left > 0 or (left < 0 and not goes_on):
                return None
            if left == 0:
                self._world.trace.note(machine.name, f"has a disk that fails: {operation} {path}")
                machine.met_disk_error = machine.process
                self._later(0.5, 6.0, end)
            return Fault(errno.EIO, written_bytes)

        machine.disk_errors += 1
        machine.disk.inject = inject
        machine.disk.faults_in_reads = rng.random() < 0.3
        return True

    def fill(self) -> bool:
        """Another program fills the disk almost completely, and frees it after a while."""
        machine = self._machine
        if machine.disk.capacity_bytes is not None:
            return False
        left = self._rng.choice([0, 200, 3_000])
        machine.disk.capacity_bytes = machine.disk.used_bytes + left
        machine.disk_errors += 1
        self._world.trace.note(machine.name, f"has {left} bytes of its disk left")

        def make_room() -> None:
            machine.disk.capacity_bytes = None
            self._world.trace.note(machine.name, "has room on its disk")

        self._later(0.5, 8.0, make_room)
        return True

    def flip_bit(self, logs: Iterable[str]) -> tuple[str, int, int] | None:
        """Flip one bit of a batch that recovery assumes to be on stable storage. Returns the name of its log, out of
        `logs`, with the batch's first and last offsets, or None without such a batch.
        """
        batches = [each for name in logs for each in self._cold_batches(name)]
        if not batches:
            return None
        found = self._rng.choice(batches)
        self._flip(found, self._rng.randrange(found.batch.size_in_bytes), 1 << self._rng.randrange(8))
        return found.name, found.batch.base_offset, found.batch.last_offset

    def tear(self, topic_partition: TopicPartition) -> bool:
        """Damage a committed batch in recovery's range; returns whether one exists. No process may be running."""
        name = f"{topic_partition.topic}-{topic_partition.partition}"
        batches = [
            found
            for found in self._batches(name)
            if found.batch.base_offset >= found.recovery_point and found.batch.last_offset < found.high_watermark
        ]
        if not batches:
            return False
        found = self._rng.choice(batches)
        # The CRC covers the bytes after it.
        self._flip(found, self._rng.randrange(_CRC_ENDS_AT, found.batch.size_in_bytes), 1 << self._rng.randrange(8))
        return True

    def _flip(self, found: _Found, at: int, bit: int) -> None:
        name, inode, position, batch = found[:4]
        inode.content[position + at] ^= bit
        durable = bytearray(inode.durable)
        if position + at < len(durable):
            durable[position + at] ^= bit
            inode.durable = bytes(durable)
        first, last = batch.base_offset, batch.last_offset
        self._machine.damage.setdefault(name, {}).update(dict.fromkeys(range(first, last + 1)))
        self._world.trace.note(
            self._machine.name, f"has bit {bit} of byte {at} flipped in the batch {first}-{last} of {name}"
        )

    def _cold_batches(self, name: str) -> Iterator[_Found]:
        """The sound batches of a log below its recovery point."""
        for found in self._batches(name):
            inode, end = found.inode, found.position + found.batch.size_in_bytes
            is_durable = len(inode.durable) >= end and all(at >= end for at, _ in inode.pending)
            if found.batch.last_offset < found.recovery_point and is_durable and not inode.is_behind:
                yield found

    def _batches(self, name: str) -> Iterator[_Found]:
        """The batches of a log up to the first damaged one in each of its files."""
        disk = self._machine.disk
        topic, _, number = name.rpartition("-")
        for directory in self._machine.log_dirs:
            points = []
            for file in (RECOVERY_POINT_CHECKPOINT, HIGH_WATERMARK_CHECKPOINT):
                checkpoint = f"{directory}/{file}"
                offsets = read_offset_checkpoint(disk, checkpoint) if disk.exists(checkpoint) else {}
                points.append(offsets.get(TopicPartition(topic, int(number)), 0))
            if not disk.exists(f"{directory}/{name}"):
                continue
            for info in disk.list_dir(f"{directory}/{name}"):
                inode = disk._find(f"{directory}/{name}/{info.name}")
                if not info.name.endswith(".log") or not isinstance(inode, Inode):
                    continue
                position, content = 0, memoryview(bytes(inode.content))
                while len(content) - position >= HEADER_BYTES:
                    end = position + RecordBatch(content[position:]).size_in_bytes
                    if end - position < HEADER_BYTES:
                        break  # flipped before
                    batch = RecordBatch(content[position:end])
                    if not batch.is_valid:
                        break
                    yield _Found(name, inode, position, batch, *points)
                    position = end
