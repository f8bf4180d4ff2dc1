"""A run of bytes of a log segment as part of a reply: read when the socket has room, not before."""

from __future__ import annotations

from storage.io.file_system import Bytes, File


class FileSlice:
    """`length` bytes of `file` from `position`. Consumed from the front by `advance`."""

    __slots__ = ("_file", "_length", "_position")

    def __init__(self, file: File, position: int, length: int) -> None:
        self._file = file
        self._position = position
        self._length = length

    def __len__(self) -> int:
        """Bytes left."""
        return self._length

    def __repr__(self) -> str:
        return f"{self._length} bytes of {self.path} at {self._position}"

    @property
    def path(self) -> str:
        """The path of the file."""
        return self._file.path

    def try_read(self, size: int) -> bytes | bytearray | None:
        """The next `size` bytes if they are in memory; None when reading them would block on the disk."""
        return self._file.try_pread(self._position, size)

    def try_read_into(self, buffer: memoryview) -> memoryview | None:
        """The next bytes, in as much of the buffer as they take; None when reading them would block on the disk."""
        count = self._file.try_pread_into(self._position, buffer)
        return None if count is None else buffer[:count]

    def read(self, size: int) -> bytes | bytearray:
        """The next `size` bytes, waiting for the disk."""
        return self._file.pread(self._position, size)

    def advance(self, size: int) -> None:
        """Drop `size` bytes from the front."""
        self._position += size
        self._length -= size


Part = Bytes | FileSlice
"""One piece of a reply."""
