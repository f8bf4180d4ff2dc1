"""The inputs and the result of opening a log."""

from __future__ import annotations

import re
from collections.abc import Iterable

from protocol.value import Value, field
from storage.io.file_system import FileInfo
from storage.log.unified_log import UnifiedLog

_LOG_FILE = re.compile(r"\d{20}\.log")


class LoadResult(Value, frozen=False):
    """A loaded log and the repairs it needed."""

    log: UnifiedLog
    truncated_bytes: int = 0
    """Bytes cut off at the end, from the first incomplete or damaged batch on, including later segments."""
    high_watermark: int = 0
    """A lower bound of the high watermark before the stop: the checkpointed one, or the log start after
    `lost_its_end`.
    """
    lost_its_end: bool = False
    """Whether the log ended below its start, and restarts there empty. Since records are only deleted up to the high
    watermark, committed records above the start may be lost too, and their number is unknown.
    """
    split_segments: list[str] = field(default_factory=list)
    """Paths of the segments whose offsets exceeded the range of an index."""

    @property
    def lost_below_high_watermark(self) -> int:
        """The least number of committed offsets that were lost, before the first new append."""
        return max(self.high_watermark - self.log.log_end_offset, int(self.lost_its_end))


class LoadOptions(Value):
    """The inputs for opening a log. The offsets come from the directory's checkpoints, 0 without an entry."""

    clean: bool
    """Whether the last stop was clean."""
    recovery_point: int
    log_start_offset: int
    high_watermark: int
    now_ms: int
    cleaner_checkpoint: int | None
    may_have_gaps: bool
    """Whether segments above the recovery point may end before the next one begins although nothing was lost: when
    Kafka wrote them and the topic may have been compacted (`checkpoints.WHOLE_SEGMENTS`).
    """
    name: str = ""
    """The name of the partition's directory, if it differs from the partition's."""


def bytes_to_recover(files: Iterable[FileInfo], recovery_point: int) -> int:
    """The number of bytes that `LogLoader` will read for a partition with these files after an unclean stop."""
    sizes = {int(info.name[:20]): info.size for info in files if _LOG_FILE.fullmatch(info.name)}
    first = max((base for base in sizes if base <= recovery_point), default=0)
    return sum(size for base, size in sizes.items() if base >= first)
