"""Logs that recovery cut below their high watermark: their replicas lack records that were committed (trap M22).

Such a replica does not count as in sync, whatever the tree says: as leader it would have the others cut off what they
still have. It takes no role in which it is in the ISR together with others, but answers KAFKA_STORAGE_ERROR. Every
controller, Kafka's too, then takes it out of the ISR and has another member lead. It follows that one, and comes back
into the ISR by the ordinary rule.
"""

from __future__ import annotations

import logging

from cluster.metadata_image import PartitionImage
from storage.log.unified_log import UnifiedLog
from storage.log_manager import LogManager

logger = logging.getLogger("kafka.server.ReplicaManager")


class CutLogs:
    """Decides which roles such replicas take. The log manager knows them, and so does the checkpoint, until they have
    a role.
    """

    def __init__(self, broker_id: int, log_manager: LogManager) -> None:
        self._broker_id = broker_id
        self._cut = log_manager.checkpoints.cut_below

    def refuses(self, log: UnifiedLog, state: PartitionImage) -> bool:
        """Whether this is a role that a cut log must not have.

        The only member of the ISR takes its role: nobody is known to have more. So does every member where
        unclean.leader.election.enable prefers a leader to records.
        """
        topic_partition = log.topic_partition
        high_watermark = self._cut.get(topic_partition)
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
        del self._cut[topic_partition]
        if is_in_sync:
            logger.error(
                "%s ends at %d here, below its high watermark %d, and no other replica is in sync or waited for. "
                "Records are lost",
                topic_partition,
                end_offset,
                high_watermark,
            )
        else:
            logger.info("%s, which was cut below its high watermark, fetches again what it lost", topic_partition)
        return False
