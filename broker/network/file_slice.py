"""A run of bytes of a log segment as part of a reply: read when the socket has room, not before."""

from __future__ import annotations

from storage.io.file_system import File


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
        """Of the file."""
        return self._file.path

    def try_read(self, size: int) -> bytes | bytearray | None:
        """The next `size` bytes if they are in memory; None when reading them would block on the disk."""
        return self._file.try_pread(self._position, size)

    def try_send(self, socket: int, size: int) -> int | None:
        """Have the kernel send the next `size` bytes, or some of them; see `storage.io.file_system.File.try_send`."""
        return self._file.try_send(socket, self._position, size)

    def read(self, size: int) -> bytes | bytearray:
        """The next `size` bytes, waiting for the disk."""
        return self._file.pread(self._position, size)

    def advance(self, size: int) -> None:
        """Drop `size` bytes from the front."""
        self._position += size
        self._length -= size


Part = bytes | bytearray | memoryview | FileSlice
"""One piece of a reply."""
