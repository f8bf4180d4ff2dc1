"""Names of the files in the directory of a partition (Kafka class `LogFileUtils`)."""

from __future__ import annotations

LOG_SUFFIX = ".log"
OFFSET_INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
TXN_INDEX_SUFFIX = ".txnindex"
SNAPSHOT_SUFFIX = ".snapshot"
DELETED_SUFFIX = ".deleted"
CLEANED_SUFFIX = ".cleaned"
"""Suffix of files that compaction is writing; they are void before they are renamed."""
SWAP_SUFFIX = ".swap"
"""Complete, and about to replace the segments in its range of offsets."""
TRUNCATION_MARKER = "odradek-cut."
"""Begins the name of an empty file; the rest of it is the recovery point of a log whose end was cut off, for as long as
its checkpoint may say more. A name is there or not, where a power cut may leave any part of a content. Our own; Kafka
passes over files that it does not know.
"""
SEGMENT_SUFFIXES = (LOG_SUFFIX, OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)


def file_name(base_offset: int, suffix: str) -> str:
    """Name of a file that belongs to the segment (or snapshot) at `base_offset`."""
    return f"{base_offset:020d}{suffix}"
