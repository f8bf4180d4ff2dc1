"""The controller service: elections, and requests to the controller (Kafka class `KafkaController`).

Changes run one at a time, each in the same steps: make a pure decision on the ControllerContext, write its operations
in fenced transactions, update the context, then send commands to the brokers: first the new roles, then the metadata
for clients. A deletion sends the metadata first. `ActiveController` implements these steps; this module accepts and
orders the changes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from broker.controller.active_controller import ActiveController, FindReplicas
from broker.controller.broker_requests import BrokerChannel, BrokerRequests, NewChannel
from broker.controller.cluster_membership import RETRY_S, ClusterMembership
from broker.controller.controller_term import ControllerSettings, ControllerTerm, controller_settings
from broker.controller.topic_changes import NOBODY, Requester, TopicRules
from broker.zookeeper.kafka_zk_client import UNKNOWN_CONTROLLER, ClusterError
from cluster import znodes
from cluster.controller.commands import Answer, LeaderAndIsr, StopReplica
from cluster.controller.context import ControllerContext
from cluster.controller.topics import NewTopic, TopicPlan
from cluster.controller.transactions import ControllerEpoch
from cluster.metadata_image import BrokerImage, PartitionImage
from config.broker_config import BrokerConfig
from protocol.errors import ApiError, ErrorCode
from protocol.messages.reassignments import ElectionType
from protocol.topic_partition import TopicPartition
from protocol.uuids import Uuid
from zookeeper.coordination import (
    ConnectionLossError,
    CoordinationError,
    EventType,
    MultiError,
    SessionExpiredError,
    WatchEvent,
)

if TYPE_CHECKING:
    from broker.controller.controller_term import Elected
    from cluster.replication.isr import IsrChange


T = TypeVar("T")

logger = logging.getLogger("kafka.controller.KafkaController")


class ChangeQueue:
    """Runs the changes of a controller in the order of the calls."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._running: dict[asyncio.Task[Any], None] = {}

    async def run(self, change: Callable[[], Awaitable[T]]) -> T:
        """Run `change` after all earlier ones. It completes even if the caller is cancelled: between the transaction
        and the commands, the tree and the brokers disagree.
        """
        return await asyncio.shield(self._begin(change))

    def start(self, change: Callable[[], Awaitable[None]]) -> None:
        """Like `run`, without waiting; errors are logged."""

        async def logged() -> None:
            try:
                await change()
            except Exception:
                logger.exception("The controller failed to react to a change")

        self._begin(logged)

    def _begin(self, change: Callable[[], Awaitable[T]]) -> asyncio.Task[T]:
        task = asyncio.create_task(self._in_turn(change))
        self._running[task] = None
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        del self._running[task]
        if not task.cancelled():
            task.exception()  # marks the error as retrieved: the caller may be gone

    async def _in_turn(self, change: Callable[[], Awaitable[T]]) -> T:
        async with self._turn:
            return await change()

    async def close(self) -> None:
        """Wait for all queued changes."""
        while self._running:
            await asyncio.wait(list(self._running))


SHORT_TERM_S = 60.0
"""A term given up sooner than this is regarded as failed."""
ELECTION_PAUSE_S = 20.0
"""Pause after any election before this broker stands again, once two of its terms in a row have failed. The cause may
be in the tree, and every new epoch disturbs all brokers.
"""
DELETION_PATIENCE_S = 5.0
"""Maximum time a delete call waits for live brokers; after that the deletion continues in the background."""


def not_controller() -> ApiError:
    """The error of a broker that is not the controller."""
    return ApiError(ErrorCode.NOT_CONTROLLER, "This is not the correct controller for this cluster.")


class ControllerService:
    """Runs the controller on this broker whenever it is elected; implements `ControllerApi`.

    Methods that change something raise ApiError with Kafka's error codes, and NOT_CONTROLLER when this broker is not
    the controller.
    """

    def __init__(
        self,
        membership: ClusterMembership,
        own_channel: BrokerChannel,
        settings: ControllerSettings,
        rules: TopicRules,
        new_channel: NewChannel | None = None,
    ) -> None:
        """`own_channel` leads to this broker; `new_channel` creates the channels to others."""
        self.settings = settings
        self._membership = membership
        self._own_channel = own_channel
        self._new_channel = new_channel
        self._rules = rules
        self._broker: BrokerImage | None = None
        """This broker's registration, or None between two sessions."""
        self._active: ActiveController | None = None
        self._changes = ChangeQueue()
        self._is_closed = False
        self._elected_at_s = 0.0
        self._failed_terms = 0
        """Consecutive failed terms."""
        self._stands_from_s = 0.0
        """The earliest time for the next candidacy. All election times are those of the event loop's clock."""
        self._next_election: asyncio.TimerHandle | None = None
        membership.on_session_change(self._session_ended, self._session_began)
        membership.on_registration_change(self._registration_changed)

    def config_changed(self, config: BrokerConfig) -> None:
        """Use this configuration from now on."""
        self.settings = controller_settings(config)

    @property
    def is_active(self) -> bool:
        """Whether this broker believes it is the controller."""
        return self._active is not None

    # -- start and stop ------------------------------------------------------------------------------------------------

    async def start(
        self, broker: BrokerImage, find_replicas: FindReplicas | None = None, *, unclean: bool = True
    ) -> None:
        """Join controller elections as `broker`, and become the controller if there is none.

        See `ActiveController.on_controller_failover` for the other arguments; a shared tree adopts nothing and keeps
        leader epochs. Raises ClusterError, CoordinationError.
        """
        self._broker = broker
        if self._membership.is_shared:
            await self._changes.run(partial(self._react, self._elect))
        else:
            await self._changes.run(partial(self._elect, find_replicas, unclean=unclean))
            if not self.is_active:
                raise ClusterError("Another broker is the controller already")

    async def close(self) -> None:
        """Finish all queued changes. The controller's node disappears with the session."""
        self._is_closed = True
        if self._next_election is not None:
            self._next_election.cancel()
        await self._changes.close()
        await self._resign()

    # -- elections -----------------------------------------------------------------------------------------------------

    async def _elect(self, find_replicas: FindReplicas | None = None, *, unclean: bool = False) -> None:
        """Become the controller unless another broker is; in that case a watch reports when it goes. Resign if another
        broker has been elected.
        """
        broker, zk_client, is_shared = self._broker, self._membership.zk_client, self._membership.is_shared
        if broker is None:
            return
        owner = await zk_client.controller_id(self._controller_node_changed)
        if self._active is not None:
            if owner == broker.broker_id:
                return
            await self._resign()
        if owner in (broker.broker_id, UNKNOWN_CONTROLLER):
            # Either this broker resigned but its node stayed, or it never learned that its node was created.
            session_id = self._membership.coordination.session_id
            if not await zk_client.delete_node_of(znodes.CONTROLLER, [session_id]):
                return
        elif owner is not None:
            logger.info("Broker %d has been elected as the controller, so stopping the election process.", owner)
            self._rest_after_election()
            return
        elected = await self._stand(broker.broker_id)
        if elected is None:
            return
        logger.info("Broker %d is the controller with epoch %d", broker.broker_id, elected.epoch)
        brokers = await zk_client.live_brokers(self._broker_nodes_changed) if is_shared else {}
        rules, live = self._rules, [broker, *brokers.values()]
        context = ControllerContext(broker.broker_id, elected.epoch, live, rules.unclean, rules.min_isr)
        requests = BrokerRequests(context, self._own_channel, self._new_channel, self._answered)
        coordination, clock = self._membership.coordination, self._membership.clock
        term = ControllerTerm(context, elected, coordination, zk_client, requests, clock, is_shared=is_shared)
        active = self._active = ActiveController(term, self._rules, lambda reaction: self._begin_in(active, reaction))
        try:
            await active.on_controller_failover(self.settings, find_replicas, unclean=unclean)
        except (ApiError, znodes.ZnodeFormatError) as error:
            if not is_shared:
                raise
            await self._trigger_controller_move(f"the failover failed: {error}")

    async def _stand(self, broker_id: int) -> ControllerEpoch | None:
        """Stand for election, after a pause if recent terms failed. Returns None if this broker is not elected."""
        zk_client, loop = self._membership.zk_client, asyncio.get_running_loop()
        if loop.time() < self._stands_from_s:
            self._elect_later()
            return None
        try:
            elected = await zk_client.register_controller(broker_id)
        except znodes.ZnodeFormatError as error:
            if not self._membership.is_shared:
                raise
            zk_client.damaged.report(error, "no controller is elected")
            self._stands_from_s = loop.time() + ELECTION_PAUSE_S
            self._elect_later()
            return None
        zk_client.damaged.is_readable(znodes.CONTROLLER_EPOCH)
        self._elected_at_s = loop.time()
        return elected

    async def _resign(self) -> None:
        """Stop being the controller."""
        active, self._active = self._active, None
        if active is not None:
            logger.info("Broker %d resigned as the controller", self._broker.broker_id if self._broker else -1)
            await active.close()

    async def _trigger_controller_move(self, reason: str) -> None:
        """Resign because the context may differ from the tree. The next controller, perhaps this broker, reads the tree
        again. An unshared tree has a single writer, so there only a restart helps.
        """
        if not self._membership.is_shared:
            self._membership.lost(reason)
            return
        logger.warning("Resigning as the controller: %s", reason)
        now_s = asyncio.get_running_loop().time()
        if self._active is not None:
            is_short = now_s - self._elected_at_s < SHORT_TERM_S
            self._failed_terms = self._failed_terms + 1 if is_short else 0
        await self._resign()
        zk_client, session_id = self._membership.zk_client, self._membership.coordination.session_id
        try:
            await zk_client.delete_node_of(znodes.CONTROLLER, [session_id])
        except CoordinationError as error:
            logger.warning("%s may still name this broker: %s", znodes.CONTROLLER, error)
        self._stands_from_s = now_s + RETRY_S
        self._rest_after_election()
        self._elect_later()

    def _rest_after_election(self) -> None:
        """Postpone the next candidacy after an election, or after the end of a term, if terms keep failing."""
        if self._failed_terms > 1:
            self._stands_from_s = asyncio.get_running_loop().time() + ELECTION_PAUSE_S

    def _elect_later(self) -> None:
        """Stand for election as soon as that is allowed, unless another broker is elected first."""
        if self._next_election is not None:
            self._next_election.cancel()
        loop = asyncio.get_running_loop()
        self._next_election = loop.call_at(self._stands_from_s, self._begin, self._elect)

    # -- events --------------------------------------------------------------------------------------------------------

    def _begin(self, reaction: Callable[[], Awaitable[None]]) -> None:
        if not self._is_closed:
            self._changes.start(partial(self._react, reaction))

    def _begin_in(self, active: ActiveController, reaction: Callable[[], Awaitable[None]]) -> None:
        """Like `_begin`, but skipped once this term is over."""

        async def react() -> None:
            if active is self._active:
                await reaction()

        self._begin(react)

    async def _react(self, reaction: Callable[[], Awaitable[None]]) -> None:
        """Run a reaction to an event. Reactions read the current state, so they can be repeated."""
        try:
            await reaction()
        except SessionExpiredError:
            await self._resign()
        except (ConnectionLossError, MultiError, ApiError) as error:
            await self._trigger_controller_move(f"a reaction failed: {error}")
        except Exception as error:  # a bug; its watch is gone, so the reaction would never run again
            if not self._membership.is_shared:
                raise
            logger.exception("The controller failed to react to a change")
            if self._active is None:
                self._failed_terms += 1
            await self._trigger_controller_move(f"a reaction failed: {error!r}")

    def _controller_node_changed(self, event: WatchEvent) -> None:
        if event.type is not EventType.SESSION_EXPIRED:
            self._begin(self._elect)

    def _broker_nodes_changed(self, event: WatchEvent) -> None:
        if event.type is not EventType.SESSION_EXPIRED:
            self._begin(self._brokers_changed)

    async def _brokers_changed(self) -> None:
        active = self._active
        if active is None:
            return
        found = await self._membership.zk_client.live_brokers(self._broker_nodes_changed)
        if self._broker is not None:
            # This broker is alive even if its node is unreadable.
            found.setdefault(self._broker.broker_id, self._broker)
        if active is self._active:  # a later term has read them itself
            await active.set_live_brokers(found)

    def _registration_changed(self, broker: BrokerImage) -> None:
        if self._broker is not None:
            self._broker = broker
            if not self._membership.is_shared:  # a lone broker does not watch its registration
                self._begin(self._brokers_changed)

    def _answered(self, broker_id: int, command: LeaderAndIsr | StopReplica, answer: Answer) -> None:
        active = self._active
        if active is not None:
            self._begin_in(active, partial(active.answered, broker_id, command, answer))

    def _session_ended(self) -> None:
        self._broker = None
        active, self._active = self._active, None
        if active is not None:
            logger.info("Resigned as the controller: the session has expired")
            self._changes.start(active.close)

    async def _session_began(self, broker: BrokerImage) -> None:
        self._broker = broker
        await self._changes.run(partial(self._react, self._elect))

    # -- topics --------------------------------------------------------------------------------------------------------

    async def create_topics(
        self, new_topics: Sequence[NewTopic], *, validate_only: bool = False, requester: Requester = NOBODY
    ) -> dict[str, TopicPlan | ApiError]:
        """Create the topics that can be created, with leaders. Maps each name to the plan carried out, or to
        the error.
        """
        try:
            return await self._change(
                lambda active: active.topics.create(
                    new_topics, self.settings, validate_only=validate_only, requester=requester
                )
            )
        except ApiError as error:  # a full disk
            return {topic.name: error for topic in new_topics}

    async def create_partitions(
        self,
        name: str,
        count: int,
        assignments: Sequence[tuple[int, ...]] | None,
        *,
        validate_only: bool = False,
        requester: Requester = NOBODY,
    ) -> None:
        """Grow a topic to `count` partitions. Raises ApiError."""
        await self._change(
            lambda active: active.topics.create_partitions(
                name, count, assignments, validate_only=validate_only, requester=requester
            )
        )

    async def delete_topics(self, names: Iterable[str]) -> None:
        """Delete those of these topics that exist. On return the live brokers have deleted their replicas; anything
        that is blocked or too slow finishes later.
        """
        names = list(names)

        async def delete(active: ActiveController) -> ActiveController:
            await active.deletions.delete(names)
            return active

        active = await self._change(delete)
        await active.deletions.wait_for(names, DELETION_PATIENCE_S)

    # -- reassignments -------------------------------------------------------------------------------------------------

    async def alter_reassignments(
        self, targets: Mapping[TopicPartition, tuple[int, ...] | None]
    ) -> dict[TopicPartition, ApiError | None]:
        """Start reassigning partitions to these replicas; None cancels a reassignment. Maps each partition to its
        error, or None. Raises NOT_CONTROLLER.
        """
        return await self._change(lambda active: active.reassignments.alter(targets))

    def reassignments(self) -> Mapping[TopicPartition, PartitionImage]:
        """The partitions being reassigned. Raises NOT_CONTROLLER."""
        if self._active is None:
            raise not_controller()
        return self._active.reassignments.in_progress()

    # -- leaders -------------------------------------------------------------------------------------------------------

    async def elect_leaders(self, partitions: Iterable[TopicPartition], election_type: ElectionType) -> Elected:
        """Elect leaders of these partitions; maps each to its leader or its error. Raises ApiError."""
        return await self._change(lambda active: active.elections.elect(partitions, election_type))

    async def balance_leaders(self) -> None:
        """Move leadership back to preferred replicas, if this broker is the controller. Must be called periodically."""
        if self._active is not None:
            percentage = self.settings.leader_imbalance_percentage
            await self._change(lambda active: active.elections.balance(percentage))

    def election_rules_changed(self) -> None:
        """Elect leaders that the new settings allow, and update those that may commit again."""
        self._begin(self._trigger_online_state_change)

    async def _trigger_online_state_change(self) -> None:
        active = self._active
        if active is not None:
            states = await active.state_machine.trigger_online_state_change()
            if states:
                await active.state_machine.send_leader_and_isr(states)

    # -- requests from brokers -----------------------------------------------------------------------------------------

    async def log_directory_failed(self) -> None:
        """Find the replicas that this broker lost, or report the failure to the controller."""
        broker = self._broker
        if broker is None:
            return
        if self._membership.is_shared and self._active is None:
            await self._membership.zk_client.report_log_dir_event(broker.broker_id)
        else:
            await self._change(lambda active: active.state_machine.find_offline_replicas([broker.broker_id]))

    async def alter_partition(
        self, broker_id: int, broker_epoch: int, changes: Sequence[IsrChange]
    ) -> Mapping[TopicPartition, PartitionImage | ErrorCode]:
        """See ControllerApi."""

        async def alter(active: ActiveController) -> Mapping[TopicPartition, PartitionImage | ErrorCode]:
            results = await active.alter_partition(broker_id, broker_epoch, changes)
            if active.can_complete_reassignments:
                # Runs after the leader has got its answer, which would be outdated otherwise.
                self._begin(self._complete_reassignments)
            return results

        return await self._change(alter)

    async def topic_names(self, topic_ids: Collection[Uuid]) -> Mapping[Uuid, str]:
        """See OwnController."""

        async def names(active: ActiveController) -> Mapping[Uuid, str]:
            return active.topic_names(topic_ids)

        return await self._change(names)

    async def _complete_reassignments(self) -> None:
        if self._active is not None:
            await self._active.reassignments.complete_ready()

    async def controlled_shutdown(self, broker_id: int, broker_epoch: int) -> Sequence[TopicPartition]:
        """See ControllerApi. Raises BROKER_NOT_AVAILABLE for a broker that is not registered."""
        return await self._change(lambda active: active.brokers.shut_down(broker_id, broker_epoch))

    async def allocate_producer_ids(self, broker_id: int, broker_epoch: int) -> znodes.ProducerIdBlock:
        """See ControllerApi."""
        return await self._change(lambda active: active.allocate_producer_ids(broker_id, broker_epoch))

    # -- execution -----------------------------------------------------------------------------------------------------

    async def _change(self, change: Callable[[ActiveController], Awaitable[T]]) -> T:
        return await self._changes.run(partial(self._carry_out, change))

    async def _carry_out(self, change: Callable[[ActiveController], Awaitable[T]]) -> T:
        active = self._active
        if active is None:
            raise not_controller()
        transaction_count = active.transaction_count
        try:
            await active.deletions.retry_deletions()
            return await change(active)
        except (ConnectionLossError, SessionExpiredError) as error:
            # The transaction may or may not have taken effect. The next controller reads the tree.
            await self._trigger_controller_move(f"the outcome of a change is not known: {error}")
            raise ApiError(ErrorCode.NOT_CONTROLLER, f"the outcome is not known: {error}") from error
        except MultiError as error:
            if not self._membership.is_shared:
                raise
            await self._trigger_controller_move(f"a change was refused: {error}")
            raise ApiError(ErrorCode.NOT_CONTROLLER, f"a change was refused: {error}") from error
        except ApiError:
            raise
        except Exception as error:  # a bug; the context and the brokers may have missed something that was written
            if active.transaction_count > transaction_count and self._membership.is_shared:
                await self._trigger_controller_move(f"a change failed: {error!r}")
            raise
