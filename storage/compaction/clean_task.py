"""The cleaner's tasks and results. They are plain values that survive JSON, so a worker process, a thread or a
simulation can run the same task.
"""

from __future__ import annotations

import json
from typing import NamedTuple

from protocol.value import Value, field

DEFAULT_READ_BYTES = 256 * 1024
"""Half of Kafka's log.cleaner.io.buffer.size; the other half is for writing."""


class SegmentSize(NamedTuple):
    """A segment as it was found: its base offset and the size of its `.log` file in bytes."""

    base_offset: int
    size: int


class LastRecord(NamedTuple):
    """The last record of a producer in the log's producer state (Kafka's `LastRecord`): its epoch, and the offset of
    its last data record, -1 when only a marker is known.
    """

    producer_id: int
    producer_epoch: int
    last_data_offset: int


class CleanTask(Value, kw_only=True):
    """One log to clean, as it was when the task was made; see `storage.compaction.cleanable_log.plan_cleaning`."""

    path: str
    """The directory of the log."""
    segments: list[SegmentSize]
    """All segments, the active one last: the marker of a transaction may lie above the cleaned range."""
    log_end_offset: int
    first_dirty_offset: int
    first_uncleanable_offset: int
    """The base of a segment; nothing from here on is cleaned."""
    producers: list[LastRecord]
    truncations: int
    """Truncations of the log so far. A truncation during the cleaning makes the result worthless."""
    map_capacity: int
    """How many keys the offset map may hold."""
    read_bytes: int = DEFAULT_READ_BYTES
    """Bytes per read; a larger batch is read whole."""
    now_ms: int
    delete_retention_ms: int
    segment_bytes: int
    segment_index_bytes: int
    index_interval_bytes: int

    def __post_init__(self) -> None:
        """Raises ValueError when the map cannot hold a single key."""
        if self.map_capacity < 1:
            raise ValueError(
                "offset map is too small to fit in even a single message, so log cleaning will never make progress. "
                "You can increase log.cleaner.dedupe.buffer.size or decrease log.cleaner.threads"
            )

    def to_json(self) -> str:
        """For `from_json` in another process."""
        return json.dumps(self.fields())

    @classmethod
    def from_json(cls, text: str) -> CleanTask:
        """The object that `to_json` was called on."""
        fields = json.loads(text)
        fields["segments"] = [SegmentSize(*segment) for segment in fields["segments"]]
        fields["producers"] = [LastRecord(*producer) for producer in fields["producers"]]
        return cls(**fields)


class CleanedGroup(Value):
    """Adjacent `sources` that became one segment at the base offset of the first. The files of `targets` have the
    suffix `.cleaned` and are on stable storage.
    """

    sources: list[SegmentSize]
    targets: list[SegmentSize]
    """Usually one; more when a source held offsets further from its base than an index can store."""

    @property
    def base_offset(self) -> int:
        return self.sources[0].base_offset


class CleanerStats(Value, frozen=False):
    """The cost and the gain of a cleaning (Kafka class `CleanerStats`). Unchanged segments are included in the written
    bytes.
    """

    map_bytes_read: int = 0
    map_keys: int = 0
    bytes_read: int = 0
    messages_read: int = 0
    bytes_written: int = 0
    messages_written: int = 0


class CleanResult(Value):
    """The outcome of `storage.compaction.cleaner.clean`; nothing has changed in the log until `ReplacementTask`.

    `groups` does not list unchanged segments.
    """

    end_offset: int
    """Everything below this offset is clean now."""
    groups: list[CleanedGroup]
    stats: CleanerStats = field(default_factory=CleanerStats)

    def to_json(self) -> str:
        """For `from_json` in another process."""
        groups = [group.fields() for group in self.groups]
        return json.dumps({"end_offset": self.end_offset, "groups": groups, "stats": self.stats.fields()})

    @classmethod
    def from_json(cls, text: str) -> CleanResult:
        """The object that `to_json` was called on."""
        fields = json.loads(text)
        groups = [
            CleanedGroup(*([SegmentSize(*segment) for segment in group[each]] for each in ("sources", "targets")))
            for group in fields["groups"]
        ]
        return cls(fields["end_offset"], groups, CleanerStats(**fields["stats"]))
