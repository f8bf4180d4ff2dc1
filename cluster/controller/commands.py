"""Commands of a controller to a broker: Kafka's LeaderAndIsr, StopReplica and UpdateMetadata requests, in the
cluster's own terms.

A command carries the epoch of the controller that gives it, and the epoch of the registration of the broker that it is
for. `CommandFence` refuses what is older than either, so that neither a deposed controller nor a message to the last
life of a broker changes anything (KAFKA-6082, KIP-380).
"""

from __future__ import annotations

from collections.abc import Mapping

from cluster.metadata_image import BrokerImage, PartitionImage
from protocol.errors import ApiError, ErrorCode
from protocol.topic_partition import TopicPartition
from protocol.uuids import ZERO_UUID, Uuid
from protocol.value import Value, field

NO_EPOCH = -1
"""As a broker epoch or the leader epoch of a StopReplica: it is not checked."""

EPOCH_DURING_DELETE = -2
"""The leader epoch of a StopReplica for a topic that is deleted: newer than every epoch (a deletion raises none)."""

Answer = Mapping[TopicPartition, ErrorCode]
"""The answer of a broker to LeaderAndIsr and StopReplica, partition by partition."""


class TopicStates(Value):
    """Partitions of one topic, not necessarily all. `is_new`: their replicas begin with this command."""

    topic: str
    topic_id: Uuid
    partitions: tuple[PartitionImage, ...]
    is_new: bool = False

    @property
    def known_id(self) -> Uuid | None:
        """The topic id; None from a controller that has none (inter.broker.protocol.version before 2.8)."""
        return self.topic_id if self.topic_id != ZERO_UUID else None


class Command(Value):
    """The sender and the receiver of a command."""

    controller_id: int
    controller_epoch: int
    broker_epoch: int


class LeaderAndIsr(Command):
    """Take these roles. `is_full` says that `topics` are all partitions of which the broker is to hold a replica."""

    topics: tuple[TopicStates, ...] = ()
    is_full: bool = False


class StoppedReplica(Value):
    """A replica to let go of; with `delete_partition`, of its log too."""

    topic_partition: TopicPartition
    leader_epoch: int
    delete_partition: bool


class StopReplica(Command):
    """Hold these replicas no longer. No log is deleted otherwise."""

    partitions: tuple[StoppedReplica, ...] = ()


class UpdateMetadata(Command):
    """Tell clients of this: all live brokers, and the topics that changed. `deleted_topics` are gone with their
    configurations; their partitions are those that they had. `is_full` says that there are no topics but `topics`;
    Apache Kafka's controller never sets it, and then `says_if_full` is False.
    """

    live_brokers: Mapping[int, BrokerImage] = field(default_factory=dict)
    topics: tuple[TopicStates, ...] = ()
    deleted_topics: tuple[TopicStates, ...] = ()
    is_full: bool = False
    says_if_full: bool = True


class CommandFence:
    """Decides which commands a broker obeys: those of the newest known controller that are addressed to the current
    registration.
    """

    def __init__(self) -> None:
        self.broker_epoch = NO_EPOCH
        """The czxid of this broker's registration; -1 before there is one."""
        self.controller_epoch = 0
        """The highest of all commands obeyed."""
        self._last_full = (NO_EPOCH, NO_EPOCH)
        """The controller epoch and the broker epoch of the last full LeaderAndIsr."""

    def admit(self, command: Command) -> None:
        """Take note of the controller of a command. Raises STALE_BROKER_EPOCH and STALE_CONTROLLER_EPOCH.

        A broker epoch above ours is none of the past: the controller heard of the registration before we did.
        """
        if command.broker_epoch not in (NO_EPOCH, self.broker_epoch) and command.broker_epoch < self.broker_epoch:
            raise ApiError(
                ErrorCode.STALE_BROKER_EPOCH,
                f"the command is for broker epoch {command.broker_epoch}, which is older than {self.broker_epoch}",
            )
        if command.controller_epoch < self.controller_epoch:
            raise ApiError(
                ErrorCode.STALE_CONTROLLER_EPOCH,
                f"controller epoch {command.controller_epoch} is older than {self.controller_epoch}",
            )
        self.controller_epoch = command.controller_epoch

    def admit_full(self, command: LeaderAndIsr) -> bool:
        """Take note of an admitted full command. True for the first from its controller to its registration.

        A controller that gets no answer in time sends the command again, and either copy may arrive after newer
        commands. So only the first may decide that a log is a stray.
        """
        epochs = (command.controller_epoch, command.broker_epoch)
        is_first = epochs != self._last_full
        self._last_full = epochs
        return is_first
