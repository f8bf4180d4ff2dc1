"""Commands from a controller to a broker: Kafka's LeaderAndIsr, StopReplica and UpdateMetadata requests, in the
cluster's own types.

A command carries the epoch of its controller, and the broker epoch of its receiver. `CommandFence` rejects commands
with an older epoch, so neither a deposed controller nor a message to an earlier incarnation of a broker changes
anything (KAFKA-6082, KIP-380). It also rejects a command that arrives after a newer one.
"""

from __future__ import annotations

from collections.abc import Mapping

from cluster.metadata_image import BrokerImage, PartitionImage
from protocol.errors import ApiError, ErrorCode
from protocol.topic_partition import TopicPartition
from protocol.uuids import ZERO_UUID, Uuid
from protocol.value import Value, field

NO_EPOCH = -1
"""As a broker epoch, or the leader epoch of a StopReplica: not checked."""

NO_NUMBER = -1
"""As the number of a command: it did not arrive over the network."""

EPOCH_DURING_DELETE = -2
"""The leader epoch of a StopReplica for a topic deletion: newer than any epoch, since a deletion does not raise it."""

_NUMBERS = 2**31
"""Correlation ids restart at 0 after this many."""

Answer = Mapping[TopicPartition, ErrorCode]
"""A broker's response to LeaderAndIsr and StopReplica, by partition."""


class TopicStates(Value):
    """Partitions of one topic, not necessarily all. `is_new`: this command creates their replicas."""

    topic: str
    topic_id: Uuid
    partitions: tuple[PartitionImage, ...]
    is_new: bool = False

    @property
    def known_id(self) -> Uuid | None:
        """The topic id, or None if the controller does not use any (inter.broker.protocol.version before 2.8)."""
        return self.topic_id if self.topic_id != ZERO_UUID else None


class Command(Value):
    """Sender and receiver of a command. `number` is the correlation id of its request: controllers, including Apache
    Kafka's, keep counting when they reconnect. A resent copy has another number.
    """

    controller_id: int
    controller_epoch: int
    broker_epoch: int
    number: int = field(default=NO_NUMBER, compare=False)


class LeaderAndIsr(Command):
    """Assigns roles. With `is_full`, `topics` contains every partition that the broker should have a replica of."""

    topics: tuple[TopicStates, ...] = ()
    is_full: bool = False


class StoppedReplica(Value):
    """A replica to drop; with `delete_partition`, together with its log."""

    topic_partition: TopicPartition
    leader_epoch: int
    delete_partition: bool


class StopReplica(Command):
    """Drops replicas. Only this command deletes logs."""

    partitions: tuple[StoppedReplica, ...] = ()


class UpdateMetadata(Command):
    """Metadata for clients: all live brokers, and the changed topics. `deleted_topics` are gone with their
    configurations; their partitions are the last known ones. With `is_full`, no topics exist except `topics`. Apache
    Kafka's controller never sets it, so `marks_full` is then False.
    """

    live_brokers: Mapping[int, BrokerImage] = field(default_factory=dict)
    topics: tuple[TopicStates, ...] = ()
    deleted_topics: tuple[TopicStates, ...] = ()
    is_full: bool = False
    marks_full: bool = True


class CommandFence:
    """Decides which commands a broker accepts: those from the newest known controller, for the current registration, in
    the order of sending.
    """

    def __init__(self) -> None:
        self.broker_epoch = NO_EPOCH
        """The czxid of this broker's current or last registration; -1 before the first."""
        self._is_registered = True
        self._is_tree_older = False
        self.controller_epoch = 0
        """The highest one of all accepted commands."""
        self._last = (NO_EPOCH, NO_EPOCH, NO_NUMBER)
        """Controller epoch, broker epoch and number of the last numbered command."""

    def registration_ended(self) -> None:
        """Reject commands for this registration: its session has ended, and the next session registers again."""
        self._is_registered = False

    def follow_older_tree(self, controller_epoch: int) -> None:
        """Accept controllers of a tree that was restored to an older state. The next broker epoch may be lower."""
        self.controller_epoch = controller_epoch
        self._is_tree_older = True

    def registered(self, broker_epoch: int) -> None:
        """Accept commands for this registration."""
        self.broker_epoch = broker_epoch
        self._is_registered = True
        self._is_tree_older = False

    def admit(self, command: Command) -> None:
        """Record the controller of an acceptable command. Raises STALE_BROKER_EPOCH and STALE_CONTROLLER_EPOCH.

        During registration, a higher broker epoch is accepted: the controller may see the registration before this
        broker gets its response. At other times such a command comes from a controller of a tree that was restored
        since.

        A controller resends a command without a response in time. The first copy may arrive after the response to the
        second, and even after newer commands: it would then delete the log of a recreated topic.
        """
        self.check_registration(command)
        if command.controller_epoch < self.controller_epoch:
            raise ApiError(
                ErrorCode.STALE_CONTROLLER_EPOCH,
                f"controller epoch {command.controller_epoch} is older than {self.controller_epoch}",
            )
        if command.number != NO_NUMBER and command.broker_epoch != NO_EPOCH:
            self._admit_number(command)
        self.controller_epoch = command.controller_epoch

    def check_registration(self, command: Command) -> None:
        """Raise STALE_BROKER_EPOCH for a command to a registration other than the current one."""
        if not self._is_addressed_by(command.broker_epoch):
            raise ApiError(
                ErrorCode.STALE_BROKER_EPOCH,
                f"the command is for broker epoch {command.broker_epoch}, and that of this broker "
                f"{'is' if self._is_registered else 'was'} {self.broker_epoch}",
            )

    def _is_addressed_by(self, broker_epoch: int) -> bool:
        if NO_EPOCH in (broker_epoch, self.broker_epoch):
            return True
        if self._is_registered:
            return broker_epoch == self.broker_epoch
        return broker_epoch > self.broker_epoch or (self._is_tree_older and broker_epoch != self.broker_epoch)

    def _admit_number(self, command: Command) -> None:
        controller_epoch, broker_epoch, last = self._last
        is_same_sender = (command.controller_epoch, command.broker_epoch) == (controller_epoch, broker_epoch)
        if is_same_sender and 0 < (last - command.number) % _NUMBERS < _NUMBERS // 2:
            raise ApiError(
                ErrorCode.STALE_CONTROLLER_EPOCH,
                f"command {command.number} of controller {command.controller_id} comes after its command {last}",
            )
        self._last = (command.controller_epoch, command.broker_epoch, command.number)
