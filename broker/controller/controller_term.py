"""One term of a controller: its settings and state, fenced writes, commands to brokers, elections, and the ISR changes
that leaders request (AlterPartition, KIP-497).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from broker.controller.broker_requests import BrokerRequests, OfflineReplicas
from broker.zookeeper.kafka_zk_client import KafkaZkClient
from cluster.controller.commands import TopicStates
from cluster.controller.context import ControllerContext
from cluster.controller.elections import (
    NO_STATE,
    after,
    decide_election,
    imbalanced,
    offline_operations,
    state_change,
    write,
)
from cluster.controller.isr_decisions import validate_isr_change
from cluster.controller.topics import NewTopic, first_states
from cluster.controller.transactions import ControllerEpoch, fenced
from cluster.metadata_image import PartitionImage
from cluster.replication.isr import IsrChange
from cluster.znodes import PartitionState
from config.broker_config import BrokerConfig
from environment.contract import Clock
from environment.slices import Slices, in_slices
from protocol.errors import ApiError, ErrorCode, detached
from protocol.messages.reassignments import ElectionType
from protocol.topic_partition import CONSUMER_OFFSETS, TRANSACTION_STATE, TopicPartition
from protocol.value import Value, field
from zookeeper.coordination import Coordination, CoordinationError, Delete, MultiError, NoSpaceError, Operation


class InternalTopic(Value):
    """Settings for an internal topic, which is created when first needed."""

    num_partitions: int
    replication_factor: int
    config: Mapping[str, str]


class ControllerSettings(Value):
    """The broker settings that the controller uses."""

    num_partitions: int = 1
    default_replication_factor: int = 1
    auto_create_topics: bool = True
    delete_topics: bool = True
    leader_imbalance_percentage: int = 10
    internal_topics: Mapping[str, InternalTopic] = field(default_factory=dict)

    def new_topic(self, name: str) -> NewTopic:
        """The settings of an automatically created topic."""
        internal = self.internal_topics.get(name)
        if internal is None:
            return NewTopic(name)
        return NewTopic(name, internal.num_partitions, internal.replication_factor, config=dict(internal.config))


def controller_settings(config: BrokerConfig) -> ControllerSettings:
    """Extract the controller's settings from `config`."""
    offsets_topic = InternalTopic(
        config.offsets_topic_num_partitions,
        config.offsets_topic_replication_factor,
        {
            "cleanup.policy": "compact",
            "segment.bytes": str(config.offsets_topic_segment_bytes),
            "compression.type": "producer",
        },
    )
    transactions_topic = InternalTopic(
        config.transaction_state_log_num_partitions,
        config.transaction_state_log_replication_factor,
        {
            "cleanup.policy": "compact",
            "segment.bytes": str(config.transaction_state_log_segment_bytes),
            "compression.type": "uncompressed",
            "min.insync.replicas": str(config.transaction_state_log_min_isr),
            "unclean.leader.election.enable": "false",
        },
    )
    return ControllerSettings(
        config.num_partitions,
        config.default_replication_factor,
        config.auto_create_topics_enable,
        config.delete_topic_enable,
        config.leader_imbalance_per_broker_percentage,
        {CONSUMER_OFFSETS: offsets_topic, TRANSACTION_STATE: transactions_topic},
    )


class TreeDiffersError(MultiError):
    """The tree differs from the context. The transaction was not applied."""


class ControllerTerm:
    """The state shared by the parts of a controller. It lasts one term, which ends with the session at the latest."""

    def __init__(
        self,
        context: ControllerContext,
        epoch: ControllerEpoch,
        coordination: Coordination,
        zk_client: KafkaZkClient,
        requests: BrokerRequests,
        clock: Clock,
        *,
        is_shared: bool,
    ) -> None:
        """`is_shared`: other brokers may use the tree, so an absent broker may come back."""
        self.is_shared = is_shared
        self.context = context
        self.zk_client = zk_client
        self.requests = requests
        self.clock = clock
        self._epoch = epoch
        self._coordination = coordination
        self.transaction_count = 0
        """Number of transactions begun."""

    async def transact(self, operations: Iterable[Operation]) -> None:
        """Write to the tree; every transaction checks that this is still the controller (KAFKA-6082).

        Raises ApiError KAFKA_STORAGE_ERROR when the tree is out of space. After any other error the controller must
        resign. MultiError means that another controller was elected or the tree differs from the context; after
        ConnectionLossError the outcome is unknown. The caller may handle a TreeDiffersError instead.
        """
        is_first = True
        for transaction in fenced(operations, self._epoch, self._coordination.max_transaction_bytes):
            self.transaction_count += 1
            try:
                await self._coordination.multi(transaction)
            except NoSpaceError as error:
                raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
            except MultiError as error:
                cause = error.__cause__
                # The first operation checks the term.
                if is_first and error.index > 0 and isinstance(cause, CoordinationError):
                    raise TreeDiffersError(error.index, cause) from cause
                raise
            is_first = False

    def check_broker(self, broker_id: int, broker_epoch: int) -> None:
        """Reject a request from an earlier registration. Raises BROKER_ID_NOT_REGISTERED, STALE_BROKER_EPOCH."""
        broker = self.context.live_brokers.get(broker_id)
        if broker is None:
            raise ApiError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"the broker {broker_id} is not registered")
        if broker.epoch != broker_epoch:
            raise ApiError(
                ErrorCode.STALE_BROKER_EPOCH,
                f"the epoch {broker_epoch} of the broker {broker_id} is not the registered one, {broker.epoch}",
            )


logger = logging.getLogger("kafka.controller.KafkaController")


class UncleanElections:
    """The broker's UncleanRule: applies unclean.leader.election.enable, and counts the unclean elections."""

    def __init__(self, is_enabled: Callable[[str], bool]) -> None:
        """`is_enabled` returns a topic's unclean.leader.election.enable."""
        self._is_enabled = is_enabled
        self.count = 0
        """Unclean elections since the start (Kafka's metric `UncleanLeaderElectionsPerSec`)."""

    def allows(self, topic: str) -> bool:
        """See UncleanRule."""
        return self._is_enabled(topic)

    def elected(self, topic: str, partition: PartitionImage, leader: int) -> None:
        """See UncleanRule."""
        self.count += 1
        logger.warning(
            "Unclean leader election: broker %d leads partition %s-%d, although it is not in the ISR %s. Records that "
            "only those brokers had are lost",
            leader,
            topic,
            partition.partition,
            list(partition.isr),
        )


class PartitionStateMachine:
    """Elects leaders, and sends roles to brokers and metadata for clients."""

    def __init__(self, term: ControllerTerm) -> None:
        self._term = term

    async def send_leader_and_isr(self, changed: Iterable[TopicStates]) -> None:
        """Send brokers their roles in these partitions, then the metadata for clients."""
        changed = tuple(changed)
        moved = await self.take_offline(await self._term.requests.leader_and_isr(changed))
        await self.send_update_metadata(changed, moved)

    async def send_update_metadata(self, changed: Iterable[TopicStates], moved: Iterable[str] = ()) -> None:
        """Send metadata of these partitions, and of all partitions of the topics in `moved`."""
        context = self._term.context
        moved = dict.fromkeys(moved)
        await Slices(self._term.clock).pause()  # the command is built in one go
        states = [*context.now(each for each in changed if each.topic not in moved), *context.states_of(moved)]
        await self._term.requests.update_metadata(states)

    async def trigger_online_state_change(self) -> tuple[TopicStates, ...]:
        """Match leaders and ISRs to the live brokers. Returns the changed partitions, which the caller must announce.
        Skips topics that are being deleted.
        """
        context, slices = self._term.context, Slices(self._term.clock)
        operations: list[Operation] = []
        changed: dict[str, list[PartitionImage]] = {}
        # Safe across the pauses between partitions: the controller makes one change at a time.
        for topic in list(context.topics.values()):
            if topic.name in context.topics_to_be_deleted:
                continue
            missing: list[PartitionImage] = []
            async for partition in in_slices(topic.partitions, slices):
                if partition.partition_epoch == NO_STATE:
                    missing.append(partition)
                elif (change := state_change(topic.name, partition, context)) is not None:
                    operations.append(change[0])
                    changed.setdefault(topic.name, []).append(change[1])
            async for writes, begun in in_slices(first_states(topic.name, missing, context), slices):
                operations += writes
                if begun.partition_epoch >= 0:
                    changed.setdefault(topic.name, []).append(begun)
        await self._term.transact(operations)
        return context.put_partitions(changed)

    async def find_offline_replicas(self, only: Iterable[int]) -> None:
        """Find the replicas that these brokers cannot use. Brokers name them in their answers to a LeaderAndIsr
        (Kafka's `processLogDirEventNotification`), because an earlier list could be outdated.
        """
        term = self._term
        offline = await term.requests.leader_and_isr(term.context.replicas(), only=list(only))
        await self.on_replicas_online(await self.take_offline(offline))

    async def log_dir_events(self, events: Mapping[str, int | None]) -> None:
        """React to the events of failed log directories, by path in the tree."""
        if events:
            await self.find_offline_replicas(dict.fromkeys(each for each in events.values() if each is not None))
            await self._term.transact([Delete(path) for path in events])

    async def on_replicas_offline(self, offline: OfflineReplicas) -> None:
        """React to replicas that brokers reported as unusable."""
        moved = await self.take_offline(offline)
        if moved:
            await self.send_update_metadata((), moved)

    async def on_replicas_online(self, topics: Iterable[str]) -> None:
        """Elect leaders now that some replicas are usable again. Sends metadata of all of `topics`."""
        states = await self.trigger_online_state_change()
        moved = await self.take_offline(await self._term.requests.leader_and_isr(states)) if states else ()
        await self.send_update_metadata(states, [*topics, *moved])

    async def take_offline(self, offline: OfflineReplicas) -> Collection[str]:
        """Take these replicas offline (Kafka's OfflineReplica) and elect new leaders. Returns the changed topics, whose
        metadata the caller must send.
        """
        term, context = self._term, self._term.context
        moved: dict[str, None] = {}
        while offline:
            states: tuple[TopicStates, ...] = ()
            for broker_id, replicas in offline.items():
                operations, changed = offline_operations(replicas, broker_id, context)
                try:
                    await term.transact(operations)
                except ApiError as error:  # a full disk
                    logger.error("Partitions stay without leaders for now: %s", error)
                    continue
                states += context.put_partitions(changed)
                moved |= dict.fromkeys(changed)
            offline = await term.requests.leader_and_isr(states) if states else {}
        return moved


Elected = dict[TopicPartition, int | ApiError]
"""The leader or the error of each partition."""


class LeaderElections:
    """Elects leaders in one term."""

    def __init__(self, term: ControllerTerm, state_machine: PartitionStateMachine) -> None:
        self._term = term
        self._state_machine = state_machine

    async def elect(self, partitions: Iterable[TopicPartition], election_type: ElectionType) -> Elected:
        """Elect a leader of each partition. On return this broker has applied the result, and the others have been sent
        it.
        """
        context = self._term.context
        outcome: Elected = {}
        operations: list[Operation] = []
        changed: dict[str, list[PartitionImage]] = {}
        async for each in in_slices(dict.fromkeys(partitions), self._term.clock):
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
            await self._term.transact(operations)
        except ApiError as error:  # a full disk
            return {each: error if isinstance(result, int) else result for each, result in outcome.items()}
        await self._state_machine.send_leader_and_isr(context.put_partitions(changed))
        return outcome

    async def balance(self, limit_percentage: int) -> None:
        """Elect preferred replicas where a broker leads too few of the partitions that prefer it."""
        partitions = imbalanced(self._term.context, limit_percentage)
        if partitions:
            await self.elect(partitions, ElectionType.PREFERRED)


class IsrChanges:
    """Compare-and-set of partition state, in one term."""

    def __init__(self, term: ControllerTerm) -> None:
        self._term = term

    async def alter(
        self, broker_id: int, broker_epoch: int, changes: Sequence[IsrChange]
    ) -> Mapping[TopicPartition, PartitionImage | ErrorCode]:
        """Judge each change and write the accepted ones. The leader learns the new state from the answer, clients from
        UpdateMetadata; followers do not need it. Raises ApiError if the request fails as a whole; as in Kafka, an
        unregistered broker gets STALE_BROKER_EPOCH.
        """
        term = self._term
        if broker_id not in term.context.live_brokers:
            raise ApiError(ErrorCode.STALE_BROKER_EPOCH, f"the broker {broker_id} is not registered")
        term.check_broker(broker_id, broker_epoch)
        context = term.context
        results: dict[TopicPartition, PartitionImage | ErrorCode] = {}
        accepted: dict[TopicPartition, PartitionImage] = {}
        operations: list[Operation] = []
        for change in changes:
            verdict = validate_isr_change(change, broker_id, context)
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
            await term.transact(operations)
        except ApiError as error:  # a full disk
            return results | dict.fromkeys(accepted, error.error_code)
        await term.requests.update_metadata(self._put(accepted))
        return results

    def _put(self, accepted: Mapping[TopicPartition, PartitionImage]) -> tuple[TopicStates, ...]:
        by_topic: dict[str, list[PartitionImage]] = {}
        for (topic, _), partition in accepted.items():
            by_topic.setdefault(topic, []).append(partition)
        return self._term.context.put_partitions(by_topic)
