"""Commands of a controller to a broker: Kafka's LeaderAndIsr, StopReplica and UpdateMetadata requests, in the
cluster's own terms.

A command carries the epoch of the controller that gives it, and the epoch of the registration of the broker that it is
for. `CommandFence` refuses what is older than either, so that neither a deposed controller nor a message to the last
life of a broker changes anything (KAFKA-6082, KIP-380). It also refuses a command that arrives after a newer one.
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

NO_NUMBER = -1
"""As the number of a command: it did not come over a network."""

EPOCH_DURING_DELETE = -2
"""The leader epoch of a StopReplica for a topic that is deleted: newer than every epoch (a deletion raises none)."""

_NUMBERS = 2**31
"""Correlation ids begin again at 0 after so many."""

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
    """The sender and the receiver of a command. `number` is the correlation id of its request: a controller, Apache
    Kafka's too, counts on when it connects again. A copy that is sent later has another number.
    """

    controller_id: int
    controller_epoch: int
    broker_epoch: int
    number: int = field(default=NO_NUMBER, compare=False)


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
    registration, in the order in which they were sent.
    """

    def __init__(self) -> None:
        self.broker_epoch = NO_EPOCH
        """The czxid of this broker's registration, or of the last one; -1 before there is one."""
        self._is_registered = True
        self._is_tree_older = False
        self.controller_epoch = 0
        """The highest of all commands obeyed."""
        self._last = (NO_EPOCH, NO_EPOCH, NO_NUMBER)
        """Controller epoch, broker epoch and number of the last command that has a number."""

    def registration_ended(self) -> None:
        """Refuse commands to this registration: its session has ended, and the next session registers again."""
        self._is_registered = False

    def follow_older_tree(self, controller_epoch: int) -> None:
        """Obey the controllers of a tree that was set back to an older state. The next broker epoch may be lower."""
        self.controller_epoch = controller_epoch
        self._is_tree_older = True

    def registered(self, broker_epoch: int) -> None:
        """Obey what is addressed to this registration."""
        self.broker_epoch = broker_epoch
        self._is_registered = True
        self._is_tree_older = False

    def admit(self, command: Command) -> None:
        """Take note of the controller of a command. Raises STALE_BROKER_EPOCH and STALE_CONTROLLER_EPOCH.

        While this broker registers, a newer broker epoch is obeyed: the controller may hear of the registration before
        the answer is here. Otherwise such a command comes from a controller of a tree that has been set back since.

        A controller sends a command again when it is not answered in time. The first copy may arrive after the answer
        to the second, and even after newer commands: it would delete the log of a topic that was made anew.
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
        """Raise STALE_BROKER_EPOCH for a command to another registration of this broker, or to one that has ended."""
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
