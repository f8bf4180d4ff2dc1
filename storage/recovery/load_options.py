"""The knowledge of a log before it is opened, and the outcome of opening it."""

from __future__ import annotations

import re
from collections.abc import Iterable

from protocol.value import Value, field
from storage.io.file_system import FileInfo
from storage.log.unified_log import UnifiedLog

_LOG_FILE = re.compile(r"\d{20}\.log")


class LoadResult(Value, frozen=False):
    """A loaded log, and what had to be repaired in it."""

    log: UnifiedLog
    recovered_segments: int = 0
    truncated_bytes: int = 0
    """Cut off at the end because they were not whole batches, segments behind them included."""
    high_watermark: int = 0
    """The least that it was before: that of the checkpoint, or the log start."""
    lost_its_end: bool = False
    """Whether the log ended below its start, and begins there anew. Records are deleted up to the high watermark only:
    what was committed behind the start is lost with the end, and nobody knows how much that was.
    """
    split_segments: list[str] = field(default_factory=list)
    """Paths of the segments that reached further than an index can."""

    @property
    def lost_below_high_watermark(self) -> int:
        """How many offsets, at least, had been committed and are no longer there, before anything is appended again."""
        return max(self.high_watermark - self.log.log_end_offset, int(self.lost_its_end))


class LoadOptions(Value):
    """The knowledge of a log before it is opened. Offsets are those of the directory's checkpoints, 0 where they have
    none.
    """

    clean: bool
    recovery_point: int
    log_start_offset: int
    high_watermark: int
    now_ms: int
    cleaner_checkpoint: int | None
    may_have_gaps: bool
    """Whether segments above the recovery point may end before the next one begins without a loss: when Kafka wrote
    them, and the topic is not known never to be compacted (`checkpoints.WHOLE_SEGMENTS`).
    """
    name: str = ""
    """Of the partition's directory, where it is not that of the partition itself."""


def bytes_to_recover(files: Iterable[FileInfo], recovery_point: int) -> int:
    """How many bytes `LogLoader` will read of a partition with these files after an unclean stop."""
    sizes = {int(info.name[:20]): info.size for info in files if _LOG_FILE.fullmatch(info.name)}
    first = max((base for base in sizes if base <= recovery_point), default=0)
    return sum(size for base, size in sizes.items() if base >= first)
