"""How much of a log is on stable storage, and what has to be fsynced before that is more."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from storage.io.file_system import FileSystem
from storage.segment.log_files import TRUNCATION_MARKER

if TYPE_CHECKING:
    from storage.log.log_flush import FlushTask


class LogDurability:
    """The recovery point of a log, and what stands between it and the log end. Belongs to the log's owner."""

    __slots__ = (
        "_file_system",
        "flush_in_flight",
        "gaps_end",
        "has_unflushed_sealed_segments",
        "has_unsynced_cut",
        "has_unsynced_names",
        "highest_recovery_point",
        "last_flushed_ms",
        "recovery_point",
        "truncation_marker",
    )

    def __init__(
        self, file_system: FileSystem, recovery_point: int, log_end_offset: int, now_ms: int, names_are_synced: bool
    ) -> None:
        self._file_system = file_system
        self.recovery_point = min(recovery_point, log_end_offset)
        """Everything below is on stable storage."""
        self.highest_recovery_point = recovery_point
        """The most that a checkpoint on disk may say. More than `recovery_point` once the end was cut off."""
        self.flush_in_flight: FlushTask | None = None
        """The last task that was made and is not completed."""
        self.last_flushed_ms = now_ms
        self.has_unsynced_names = not names_are_synced
        """Whether files were created since the directories were fsynced."""
        self.has_unflushed_sealed_segments = False
        """Whether the log was rolled since a FlushTask last reached its active segment."""
        self.has_unsynced_cut = False
        """Whether a power cut could undo that the end was cut off; nothing may be written behind such a cut."""
        self.truncation_marker: int | None = None
        """The offset in the name of the TRUNCATION_MARKER, if there is one. It is there because of `has_unsynced_cut`,
        which the process after a sudden death of this one has to know, or because `recovery_point` has not come to
        `highest_recovery_point` again.
        """
        self.gaps_end = 0
        """Below it a sealed segment may end before the next one begins without a loss. Until that is below the
        checkpointed recovery point, a start after a crash cannot know it.
        """

    def mark_truncation(self, path: str, recovery_point: int) -> None:
        """Note in the directory of the log, `path`, that its end was cut off; everything below `recovery_point` stays,
        on stable storage. Raises OSError.
        """
        noted = min(recovery_point, self.recovery_point)
        write_truncation_marker(self._file_system, path, self.truncation_marker, noted)
        self.truncation_marker = noted
        self.gaps_end = min(self.gaps_end, recovery_point)
        self.has_unsynced_names = self.has_unsynced_cut = True

    def advance(self, offset: int) -> int | None:
        """Everything below `offset` is on stable storage, and the cut if there is one. Gives the truncation marker that
        nobody needs any more, for `remove_truncation_marker`.
        """
        self.recovery_point = max(self.recovery_point, offset)
        if self.recovery_point < self.highest_recovery_point:
            return None
        self.highest_recovery_point = self.recovery_point
        if self.has_unsynced_cut:
            return None
        marker, self.truncation_marker = self.truncation_marker, None
        return marker

    @property
    def known_recovery_point(self) -> int:
        """The offset from which a start after a crash recovers, once `recovery_point` is checkpointed."""
        return (
            self.recovery_point if self.truncation_marker is None else min(self.recovery_point, self.truncation_marker)
        )


def truncation_marker_path(path: str, offset: int) -> str:
    """The TRUNCATION_MARKER that says `offset`, in the directory `path` of a log."""
    return f"{path}/{TRUNCATION_MARKER}{offset}"


def write_truncation_marker(file_system: FileSystem, path: str, known: int | None, noted: int) -> None:
    """Have the marker in the directory `path` say `noted`; it says `known`, or is not there (None). Raises OSError."""
    if known is None:
        file_system.create(truncation_marker_path(path, noted))
    elif known != noted:
        file_system.rename(truncation_marker_path(path, known), truncation_marker_path(path, noted))


def remove_truncation_marker(file_system: FileSystem, path: str, offset: int) -> None:
    """Remove the marker that says `offset`; none is no error. Raises OSError."""
    with contextlib.suppress(FileNotFoundError):
        file_system.remove(truncation_marker_path(path, offset))
