"""Logs that recovery truncated below their high watermark: their replicas lack committed records.

Such a replica must not be treated as in sync, even if the tree lists it in the ISR: as leader it would make the others
truncate what they still have. It refuses, with KAFKA_STORAGE_ERROR, any role that puts it in the ISR together with
others. Every controller, including Kafka's, then removes it from the ISR and elects another member. The replica follows
that leader, and rejoins the ISR by the ordinary rule.
"""

from __future__ import annotations

import logging

from cluster.metadata_image import PartitionImage
from storage.log.unified_log import UnifiedLog
from storage.log_manager import LogManager

logger = logging.getLogger("kafka.server.ReplicaManager")


class TruncatedLogs:
    """Decides which roles replicas with truncated logs may take. The log manager and the checkpoint remember these logs
    until their replicas have a role.
    """

    def __init__(self, broker_id: int, log_manager: LogManager) -> None:
        self._broker_id = broker_id
        self._truncated_below = log_manager.checkpoints.truncated_below

    def refuses(self, log: UnifiedLog, state: PartitionImage) -> bool:
        """Whether a replica with a truncated log must refuse this role.

        The only member of the ISR accepts its role: no other replica is known to have more. So does every member if
        unclean.leader.election.enable prefers a leader to complete records.
        """
        topic_partition = log.topic_partition
        high_watermark = self._truncated_below.get(topic_partition)
        if high_watermark is None:
            return False
        end_offset, is_in_sync = log.log_end_offset, self._broker_id in state.isr
        others = [each for each in state.isr if each != self._broker_id]
        if is_in_sync and others and not log.config.unclean_leader_election_enable:
            logger.warning(
                "%s ends at %d here, below its high watermark %d; it has to leave the ISR %s",
                topic_partition,
                end_offset,
                high_watermark,
                list(state.isr),
            )
            return True
        del self._truncated_below[topic_partition]
        if is_in_sync:
            logger.error(
                "%s ends at %d here, below its high watermark %d, and no other replica is in sync or waited for. "
                "Records are lost",
                topic_partition,
                end_offset,
                high_watermark,
            )
        else:
            logger.info("%s, whose log was truncated below its high watermark, fetches what it lost", topic_partition)
        return False
