"""A file of a segment that is opened on first use, and may be renamed while it is read."""

from __future__ import annotations

from storage.io.file_system import File, FileSystem


class SegmentFile:
    """The file at `path`. Any thread may read it; everything else belongs to the owner of the log."""

    __slots__ = ("_file", "_file_system", "path")

    def __init__(self, file_system: FileSystem, path: str) -> None:
        self._file_system = file_system
        self.path = path
        self._file: File | None = None
        """None before the first use."""

    def use_path(self, path: str) -> None:
        """The file is at `path` now."""
        self.path = path
        if self._file is not None:
            self._file.path = path

    def rename(self, path: str) -> None:
        """Rename the file; reads under way on any thread continue. Raises OSError, FileNotFoundError when it does not
        exist.
        """
        old, self.path = self.path, path
        if self._file is not None:
            self._file.rename(path)
        else:
            self._file_system.rename(old, path)
        self.use_path(path)

    def close(self) -> None:
        """Close the descriptor; the file is opened again when it is used."""
        if self._file is not None:
            self._file.close()
