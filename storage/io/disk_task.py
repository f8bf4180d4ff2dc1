"""Work that waits for the disk, kept apart from the thread that owns what it is about."""

from __future__ import annotations

from typing import Protocol


class DiskTask(Protocol):
    """Made by the owner of the logs; `run` on any thread, once; then `complete` by the owner.

    `run` changes nothing that the owner or another thread looks at, and keeps its error for `complete`.
    """

    def run(self) -> None:
        """Do what waits for the disk."""

    def complete(self) -> None:
        """Hand the result to the owner of the logs. Raises ApiError KAFKA_STORAGE_ERROR where the task says so."""
