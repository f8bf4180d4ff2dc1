"""Which replica a consumer is told to read from (KIP-392; Kafka: `ReplicaSelector`, `RackAwareReplicaSelector` and
`ReplicaManager.findPreferredReadReplica`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from cluster.metadata_image import MetadataImage
from cluster.replication.partition import Partition
from cluster.replication.reads import FetchParams

NO_PREFERENCE: Final = -1
"""The consumer goes on with the leader."""
LEADER_SELECTOR: Final = "org.apache.kafka.common.replica.LeaderSelector"
RACK_AWARE_SELECTOR: Final = "org.apache.kafka.common.replica.RackAwareReplicaSelector"


class RackAwareReplicaSelector:
    """Sends a consumer to a replica in its own rack, where there is one that has what it asks for."""

    def __init__(self, image: Callable[[], MetadataImage]) -> None:
        """`image()` is the metadata of the moment: it knows the racks."""
        self._image = image

    def select(self, partition: Partition, params: FetchParams, fetch_offset: int) -> int:
        """The broker that the consumer shall ask from now on about a partition that is led here, or NO_PREFERENCE.

        It is in sync, has the offset, and has the listener by which the consumer came. Of several the one that is most
        caught up counts, then the highest id.
        """
        in_sync, rack = partition.in_sync, params.client_rack
        if not rack or in_sync is None:
            return NO_PREFERENCE
        brokers, image = self._image().brokers, partition.image
        leader = brokers.get(image.leader)
        if leader is not None and leader.rack == rack:
            return NO_PREFERENCE
        best = None
        for broker_id, follower in in_sync.followers.items():
            broker = brokers.get(broker_id)
            if (
                broker_id in image.isr
                and broker is not None
                and broker.rack == rack
                and params.listener_name in broker.endpoints
                and follower.log_start_offset <= fetch_offset <= follower.log_end_offset
            ):
                view = follower.log_end_offset, follower.caught_up_ms, broker_id
                best = view if best is None else max(best, view)
        return NO_PREFERENCE if best is None else best[2]
