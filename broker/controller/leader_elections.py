"""Carries out elections that somebody asks for, and those that balance leadership."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from broker.controller.office import Office
from broker.controller.roles import Roles
from broker.network.slices import in_slices
from cluster.controller.elections import after, decide_election, imbalanced, write
from cluster.metadata_image import PartitionImage
from cluster.zookeeper.coordination import Operation
from protocol.errors import ApiError, detached
from protocol.messages.reassignments import ElectionType
from protocol.topic_partition import TopicPartition

logger = logging.getLogger("kafka.controller.KafkaController")

Elected = dict[TopicPartition, int | ApiError]
"""The new leaders, or why there are none."""


class LeaderElections:
    """Elects leaders in one term."""

    def __init__(self, office: Office, roles: Roles) -> None:
        self._office = office
        self._roles = roles

    async def elect(self, partitions: Iterable[TopicPartition], election_type: ElectionType) -> Elected:
        """Elect a leader of each partition; when this returns the brokers have been told, this one has obeyed."""
        context = self._office.context
        outcome: Elected = {}
        operations: list[Operation] = []
        changed: dict[str, list[PartitionImage]] = {}
        async for each in in_slices(dict.fromkeys(partitions), self._office.clock):
            before = context.partition(each)
            try:
                state = decide_election(each, election_type, context)
            except ApiError as error:
                outcome[each] = detached(error)
            else:
                outcome[each] = state.leader
                if before is not None:
                    operations.append(write(each.topic, before, state))
                    changed.setdefault(each.topic, []).append(after(before, state))
        if not operations:
            return outcome
        logger.info("Starting replica leader election (%s) for %d partitions", election_type.name, len(operations))
        try:
            await self._office.transact(operations)
        except ApiError as error:  # a full disk
            return {each: error if isinstance(result, int) else result for each, result in outcome.items()}
        await self._roles.announce(context.put_partitions(changed))
        return outcome

    async def balance(self, limit_percentage: int) -> None:
        """Give partitions back to their preferred replicas, where brokers lead too few of theirs."""
        partitions = imbalanced(self._office.context, limit_percentage)
        if partitions:
            await self.elect(partitions, ElectionType.PREFERRED)
