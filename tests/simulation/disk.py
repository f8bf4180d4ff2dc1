"""A machine's disk: the tests' in-memory file system with the machine's clock, and a view for each process.

A process gets a copy of the disk that its predecessor left. When a process is killed inside a callback, the rest of
that callback writes to a disk that is never read again.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.kit.memory_disk import copy_directory
from tests.kit.memory_file_system import MemoryFileSystem


class SimDisk(MemoryFileSystem):
    """`wall_clock` sets the times of files."""

    def __init__(self, wall_clock: Callable[[], int]) -> None:
        self._wall_clock = wall_clock
        super().__init__()

    @property
    def now_ms(self) -> int:
        return self._wall_clock()

    @now_ms.setter
    def now_ms(self, value: int) -> None:
        """The time of the machine's clock."""

    def next_life(self) -> SimDisk:
        """The disk as the next process finds it."""
        twin = SimDisk(self._wall_clock)
        twin._root = copy_directory(self._root, {})
        twin.capacity_bytes = self.capacity_bytes
        twin.kill_process()
        return twin
