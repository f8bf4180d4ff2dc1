"""One partition of a Fetch request, and of a fetch session (KIP-227)."""

from __future__ import annotations

from protocol.messages.fetch import FetchRequest, FetchResponse
from protocol.uuids import Uuid

PartitionData = FetchResponse.PartitionData


class FetchPartition:
    """A client's request for one partition and, in a session, the offsets last sent to the client."""

    __slots__ = (
        "current_leader_epoch",
        "fetch_offset",
        "last_fetched_epoch",
        "log_start_offset",
        "max_bytes",
        "partition",
        "reported_high_watermark",
        "reported_log_start_offset",
        "topic",
        "topic_id",
    )

    def __init__(self, topic: str | None, topic_id: Uuid, asked: FetchRequest.FetchPartition) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.partition = asked.partition
        self.reported_high_watermark = -1
        self.reported_log_start_offset = -1
        self.fetch_offset = asked.fetch_offset
        self.max_bytes = asked.partition_max_bytes
        self.current_leader_epoch = asked.current_leader_epoch
        self.last_fetched_epoch = asked.last_fetched_epoch
        self.log_start_offset = asked.log_start_offset
        """Of a follower's log."""

    def ask(self, asked: FetchPartition) -> None:
        """Take over new parameters. A reader that goes back, or comes in another epoch, has perhaps not taken what it
        was told: it is told all once more.
        """
        if asked.fetch_offset < self.fetch_offset or asked.current_leader_epoch != self.current_leader_epoch:
            self.reported_high_watermark = -1
        self.fetch_offset = asked.fetch_offset
        self.max_bytes = asked.max_bytes
        self.current_leader_epoch = asked.current_leader_epoch
        self.last_fetched_epoch = asked.last_fetched_epoch
        self.log_start_offset = asked.log_start_offset

    def needs(self, data: PartitionData) -> bool:
        """Whether an incremental answer needs the partition."""
        return (
            data.error_code != 0
            or len(data.records or b"") > 0
            or data.high_watermark != self.reported_high_watermark
            or data.log_start_offset != self.reported_log_start_offset
            or data.preferred_read_replica != -1
            or data.diverging_epoch is not None
        )

    def report(self, data: PartitionData) -> bool:
        """Record the offsets sent to the client; whether an incremental answer needs the partition."""
        is_needed = self.needs(data)
        # After an error, the next answer without one has to be sent as well, as if nothing had been reported. The same
        # where a follower has to truncate: it does not take that high watermark, and may ask for the same offset again.
        is_taken = not data.error_code and data.diverging_epoch is None
        self.reported_high_watermark = data.high_watermark if is_taken else -1
        self.reported_log_start_offset = data.log_start_offset
        return is_needed
