"""Names of the files in the directory of a partition (Kafka class `LogFileUtils`)."""

from __future__ import annotations

LOG_SUFFIX = ".log"
OFFSET_INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
TXN_INDEX_SUFFIX = ".txnindex"
SNAPSHOT_SUFFIX = ".snapshot"
DELETED_SUFFIX = ".deleted"
CLEANED_SUFFIX = ".cleaned"
"""Compaction is writing it; worth nothing before it is renamed."""
SWAP_SUFFIX = ".swap"
"""Complete, and about to replace the segments in its range of offsets."""
SEGMENT_SUFFIXES = (LOG_SUFFIX, OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)


def file_name(base_offset: int, suffix: str) -> str:
    """Name of a file that belongs to the segment (or snapshot) at `base_offset`."""
    return f"{base_offset:020d}{suffix}"
