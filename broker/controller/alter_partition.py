"""Carries out the changes of ISRs that leaders ask for (AlterPartition, KIP-497)."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from broker.controller.office import Office
from cluster.controller.commands import TopicStates
from cluster.controller.elections import after, write
from cluster.controller.isr_decisions import judge_isr_change
from cluster.metadata_image import PartitionImage
from cluster.replication.isr_changes import IsrChange
from cluster.znodes import PartitionState
from cluster.zookeeper.coordination import Operation
from protocol.errors import ApiError, ErrorCode
from protocol.topic_partition import TopicPartition

logger = logging.getLogger("kafka.controller.KafkaController")


class IsrChanges:
    """Compares and sets the state of partitions, in one term."""

    def __init__(self, office: Office) -> None:
        self._office = office

    async def alter(
        self, broker_id: int, broker_epoch: int, changes: Sequence[IsrChange]
    ) -> Mapping[TopicPartition, PartitionImage | ErrorCode]:
        """Decide on each change, and write those that are accepted. The leader knows the new state by the answer, and
        clients by UpdateMetadata; followers have no use for it. Raises ApiError when nothing was considered: as Kafka,
        STALE_BROKER_EPOCH also for a broker that is not registered.
        """
        office = self._office
        if broker_id not in office.context.live_brokers:
            raise ApiError(ErrorCode.STALE_BROKER_EPOCH, f"the broker {broker_id} is not registered")
        office.check_broker(broker_id, broker_epoch)
        context = office.context
        results: dict[TopicPartition, PartitionImage | ErrorCode] = {}
        accepted: dict[TopicPartition, PartitionImage] = {}
        operations: list[Operation] = []
        for change in changes:
            verdict = judge_isr_change(change, broker_id, context)
            before = context.partition(change.topic_partition)
            if not isinstance(verdict, PartitionState) or before is None or change.topic_partition in results:
                answer = ErrorCode.INVALID_REQUEST if isinstance(verdict, PartitionState) else verdict
                results[change.topic_partition] = answer
                if isinstance(answer, ErrorCode):
                    name, isr = change.topic_partition, change.broker_ids
                    logger.info(
                        "Rejecting AlterPartition of broker %d for %s, ISR %s: %s", broker_id, name, isr, answer.name
                    )
                continue
            operations.append(write(change.topic_partition.topic, before, verdict))
            results[change.topic_partition] = accepted[change.topic_partition] = after(before, verdict)
        if not accepted:
            return results
        try:
            await office.transact(operations)
        except ApiError as error:  # a full disk
            return results | dict.fromkeys(accepted, error.error_code)
        await office.requests.update_metadata(self._put(accepted))
        return results

    def _put(self, accepted: Mapping[TopicPartition, PartitionImage]) -> tuple[TopicStates, ...]:
        by_topic: dict[str, list[PartitionImage]] = {}
        for (topic, _), partition in accepted.items():
            by_topic.setdefault(topic, []).append(partition)
        return self._office.context.put_partitions(by_topic)
