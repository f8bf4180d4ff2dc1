"""A machine's disk: the tests' in-memory file system with the machine's clock, and a life for each process.

A process has a copy of what the one before it left. What a killed process still writes, in the callback in which it was
killed, is written to a disk that nobody reads again.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.kit.memory_disk import copy_directory
from tests.kit.memory_file_system import MemoryFileSystem


class SimDisk(MemoryFileSystem):
    """`wall_clock` gives the times of files."""

    def __init__(self, wall_clock: Callable[[], int]) -> None:
        self._wall_clock = wall_clock
        super().__init__()

    @property
    def now_ms(self) -> int:
        return self._wall_clock()

    @now_ms.setter
    def now_ms(self, value: int) -> None:
        """The machine's clock says it."""

    def next_life(self) -> SimDisk:
        """The disk as the next process finds it."""
        twin = SimDisk(self._wall_clock)
        twin._root = copy_directory(self._root, {})
        twin.capacity_bytes = self.capacity_bytes
        twin.kill_process()
        return twin
