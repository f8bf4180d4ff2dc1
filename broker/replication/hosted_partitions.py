"""The replicas on this broker and their roles. They come, go and change only by the controller's commands (Kafka:
`ReplicaManager.becomeLeaderOrFollower`, `stopReplicas` and `HostedPartition`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from functools import cache
from typing import TYPE_CHECKING

from broker.replication.stray_logs import StrayLogs
from broker.replication.truncated_logs import TruncatedLogs
from cluster.controller.commands import (
    NO_EPOCH,
    Answer,
    CommandFence,
    LeaderAndIsr,
    StoppedReplica,
    StopReplica,
    TopicStates,
)
from cluster.metadata_image import MetadataImage, PartitionImage
from cluster.replication.isr import ALL_ARE_ELIGIBLE, IsrRules
from cluster.replication.partition import Partition
from environment.contract import Clock
from environment.slices import Slices, in_slices
from protocol.errors import ApiError, ErrorCode, detached
from protocol.topic_partition import TopicPartition
from protocol.uuids import Uuid
from protocol.value import Value
from storage.directory.log_directory import NoRoomError
from storage.log.unified_log import UnifiedLog
from storage.log_config import LogConfig
from storage.log_manager import LogManager

if TYPE_CHECKING:
    from broker.replication.replica_fetcher_manager import ReplicaFetcherManager

logger = logging.getLogger("kafka.server.ReplicaManager")

LeadershipListener = Callable[[TopicPartition, bool], None]


class OfflineReplica(Value, frozen=False):
    """A replica that belongs here but whose log cannot be used, with the reason. It keeps the newest state from the
    controller, so that older commands are refused when the log is served again.
    """

    error: ApiError
    topic_id: Uuid | None
    state: PartitionImage


class HostedPartitions:
    """Owns the partitions by name, the offline ones, and their roles.

    `fence` decides which commands are valid. `log_config_of(topic)` returns the configuration of the topic's logs.
    `changed(partition)` is called when requests that wait for a partition should be examined, and `flush(log)` when a
    log needs a flush. `is_known(partition)` returns whether the cluster has the partition.
    """

    def __init__(
        self,
        broker_id: int,
        log_manager: LogManager,
        clock: Clock,
        fence: CommandFence,
        log_config_of: Callable[[str], LogConfig],
        *,
        changed: Callable[[TopicPartition], None],
        flush: Callable[[UnifiedLog], None],
        rules: IsrRules = ALL_ARE_ELIGIBLE,
        is_known: Callable[[TopicPartition], bool] = lambda _: False,
    ) -> None:
        self._is_known = is_known
        self._broker_id = broker_id
        self._log_manager = log_manager
        self._clock = clock
        self._fence = fence
        self._log_config_of = log_config_of
        self._changed = changed
        self._flush = flush
        self._rules = rules
        self._followers: ReplicaFetcherManager | None = None
        self._informed_epoch = NO_EPOCH
        """The last registration that received all its roles."""
        self.partitions: dict[TopicPartition, Partition] = {}
        """Only this class changes it."""
        self.topic_names: dict[Uuid, str] = {}
        """Topic names by id, of the replicas created here."""
        self._offline: dict[TopicPartition, OfflineReplica] = {}
        self._state_changes = asyncio.Lock()
        """Kafka's `replicaStateChangeLock`: a command is processed in slices, and no other one meanwhile."""
        self._leadership_listeners: list[LeadershipListener] = []
        self.strays = StrayLogs(log_manager, clock)
        self._truncated_logs = TruncatedLogs(broker_id, log_manager)

    # -- commands ------------------------------------------------------------------------------------------------------

    def add_leadership_listener(self, listener: LeadershipListener) -> None:
        """`listener(partition, leads)` is called after this broker starts or stops leading a partition."""
        self._leadership_listeners.append(listener)

    def fetch_with(self, followers: ReplicaFetcherManager) -> None:
        """Let `followers` fetch for replicas that become followers from now on."""
        self._followers = followers

    async def become_leader_or_follower(self, command: LeaderAndIsr) -> Answer:
        """Process a LeaderAndIsr: create missing replicas, lead, or resign.

        Raises STALE_CONTROLLER_EPOCH and STALE_BROKER_EPOCH; then nothing has changed, as with a leader epoch that is
        not newer than the known one. A full command renames the logs that it does not mention, but an empty one renames
        none.
        """
        slices = Slices(self._clock)
        async with self._state_changes:
            self._fence.admit(command)
            if command.is_full and command.topics:
                self._follow_older_tree(command)
                await self._set_strays_aside(command, slices)
            self.strays.make_room_for(command, self.partitions)
            await self.strays.complete_deletions()
            if self._followers is not None:
                await self._followers.stop(self._to_change(command))
            answer: dict[TopicPartition, ErrorCode] = {}
            async for topic, state in in_slices(_states(command), slices):
                # The session may end between two partitions: then this broker leads nothing (see `resign_all`).
                self._fence.check_registration(command)
                answer[TopicPartition(topic.topic, state.partition)] = self._apply_or_report(topic, state)
            if any(directory.failure is not None for directory in self._log_manager.directories):
                for topic in command.topics:
                    self._recheck(topic, answer)
            return answer

    def _follow_older_tree(self, command: LeaderAndIsr) -> None:
        """Forget leader epochs newer than those of the first full command to a registration. That command is never
        behind those to the previous registration, unless the tree was restored to an older state.
        """
        if command.broker_epoch == self._informed_epoch:
            return
        self._informed_epoch = command.broker_epoch
        for topic, state in _states(command):
            topic_partition = TopicPartition(topic.topic, state.partition)
            offline = self._offline.get(topic_partition)
            if offline is not None and offline.state.leader_epoch >= state.leader_epoch:
                offline.state = state.before()
            partition = self.partitions.get(topic_partition)
            if partition is None:
                continue
            known, new = (partition.image.leader_epoch, partition.image.leader), (state.leader_epoch, state.leader)
            if new != known and state.leader_epoch <= partition.leader_epoch:
                logger.warning(
                    "%s goes back from leader %d in epoch %d to leader %d in epoch %d, as the tree is an older one",
                    partition.topic_partition,
                    *(known[::-1] + new[::-1]),
                )
                self._resign(partition, state.before())

    def new_topics_of(self, command: LeaderAndIsr) -> list[TopicStates]:
        """The topics of the command that need new logs here."""
        logs = self._log_manager.logs
        return [
            topic
            for topic in command.topics
            if topic.is_new or any(TopicPartition(topic.topic, each.partition) not in logs for each in topic.partitions)
        ]

    def _to_change(self, command: LeaderAndIsr) -> list[TopicPartition]:
        """The hosted replicas that will change roles. No other work on their logs may run meanwhile."""
        return [
            partition.topic_partition
            for topic, state in _states(command)
            if (partition := self.partitions.get(TopicPartition(topic.topic, state.partition))) is not None
            and state.leader_epoch > partition.leader_epoch
            and (topic.known_id is None or partition.log.topic_id in (None, topic.topic_id))
        ]

    def _apply_or_report(self, topic: TopicStates, state: PartitionImage) -> ErrorCode:
        """Process one partition of a command. An error affects only its answer: the other partitions get their roles.

        An unexpected failure is retried once. After a second one the replica is offline until the next start, so that
        the controller elects another leader: it would not send this role again.
        """
        try:
            try:
                return self._apply(topic, state)
            except ApiError:
                raise
            except Exception:
                logger.exception("%s-%d does not take its role; trying again", topic.topic, state.partition)
                self._roll_back(topic, state)
                return self._apply(topic, state)
        except ApiError as error:
            logger.error("%s-%d does not take its role: %s", topic.topic, state.partition, error)
            return error.error_code
        except Exception as error:
            logger.exception("%s-%d does not take its role, and is offline", topic.topic, state.partition)
            topic_partition = TopicPartition(topic.topic, state.partition)
            self._roll_back(topic, state)
            self.partitions.pop(topic_partition, None)
            reason = ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"it could not take its role: {error!r}")
            self._offline[topic_partition] = OfflineReplica(reason, topic.known_id, state)
            return ErrorCode.KAFKA_STORAGE_ERROR

    def _roll_back(self, topic: TopicStates, state: PartitionImage) -> None:
        """Undo a partly assumed role: restore the previous leader epoch, without a role."""
        partition = self.partitions.get(TopicPartition(topic.topic, state.partition))
        if partition is None:
            return
        try:
            self._resign(partition, state.before())
        except Exception:  # raised by a listener; the replica itself has resigned
            logger.exception("A listener failed when %s gave up its role", partition.topic_partition)

    def _apply(self, topic: TopicStates, state: PartitionImage) -> ErrorCode:
        topic_partition = TopicPartition(topic.topic, state.partition)
        topic_id = topic.known_id
        offline = self._offline.get(topic_partition)
        if offline is not None and topic.is_new and offline.topic_id != topic_id:
            del self._offline[topic_partition]  # left from an earlier topic
        elif offline is not None:
            return self._apply_to_offline(offline, state)
        partition = self.partitions.get(topic_partition)
        if partition is not None:
            known = partition.log.topic_id
            if topic_id is not None and known is not None and topic_id != known:
                return ErrorCode.INCONSISTENT_TOPIC_ID
            if state.leader_epoch <= partition.leader_epoch:
                return ErrorCode.STALE_CONTROLLER_EPOCH
        if self._broker_id not in state.replicas:
            if partition is not None:
                self._resign(partition, state)
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if partition is None:
            try:
                partition = self._create(topic_partition, topic_id, state, is_new=topic.is_new)
            except ApiError as error:
                return self._keep_offline(topic_partition, OfflineReplica(error, topic_id, state))
        if self._truncated_logs.refuses(partition.log, state):
            self._resign(partition, state.before())
            return ErrorCode.KAFKA_STORAGE_ERROR
        self._take_role(partition, state)
        return ErrorCode.NONE

    def _apply_to_offline(self, offline: OfflineReplica, state: PartitionImage) -> ErrorCode:
        is_newer = state.leader_epoch > offline.state.leader_epoch
        if is_newer:
            offline.state = state
        if not isinstance(offline.error, NoRoomError):
            return ErrorCode.KAFKA_STORAGE_ERROR
        return ErrorCode.NONE if is_newer else ErrorCode.STALE_CONTROLLER_EPOCH

    def _recheck(self, topic: TopicStates, answer: dict[TopicPartition, ErrorCode]) -> None:
        """Handle a disk that failed while the other replicas of a command were created. Replicas of new topics have no
        data on it yet, so they are created on another disk.
        """
        for state in topic.partitions:
            topic_partition = TopicPartition(topic.topic, state.partition)
            if answer[topic_partition] is not ErrorCode.NONE:
                continue
            partition = self.partitions.get(topic_partition)
            if partition is not None and partition.log.directory.failure is not None:
                self._lose(partition)
            offline = self._offline.get(topic_partition)
            if offline is None or isinstance(offline.error, NoRoomError):
                continue
            if topic.is_new:
                del self._offline[topic_partition]
                answer[topic_partition] = self._apply(topic, state)
            else:
                answer[topic_partition] = ErrorCode.KAFKA_STORAGE_ERROR

    def _create(
        self, topic_partition: TopicPartition, topic_id: Uuid | None, state: PartitionImage, *, is_new: bool
    ) -> Partition:
        logs, now_ms = self._log_manager, self._clock.now_ms()
        config = self._log_config_of(topic_partition.topic)
        log = logs.get_or_create(topic_partition, topic_id, config, now_ms, is_new=is_new)
        log.config = config
        if topic_id is not None:
            self.topic_names[topic_id] = topic_partition.topic
        high_watermark = logs.checkpoints.high_watermarks.get(topic_partition, 0)
        partition = self.partitions[topic_partition] = Partition(
            topic_partition, log, high_watermark, state, self._rules
        )
        return partition

    def _keep_offline(self, topic_partition: TopicPartition, offline: OfflineReplica) -> ErrorCode:
        """Keep a replica whose log cannot be created. Lack of disk space is not an error: creation is retried later."""
        error = offline.error
        logger.error("%s is not available here: %s", topic_partition, error)
        if error.error_code is not ErrorCode.KAFKA_STORAGE_ERROR:
            return error.error_code
        self._offline[topic_partition] = offline
        return ErrorCode.NONE if isinstance(error, NoRoomError) else ErrorCode.KAFKA_STORAGE_ERROR

    def _take_role(self, partition: Partition, state: PartitionImage) -> None:
        if state.leader != self._broker_id:
            self._resign(partition, state)
            if state.leader >= 0 and self._followers is not None:
                self._followers.follow(partition)
            return
        led = partition.is_leader
        partition.become_leader(state, int(self._clock.monotonic_s() * 1000))
        if partition.is_under_min_isr or partition.log.local.flush_limit_offset < partition.log.log_end_offset:
            # Committed records may exist only here, and recovered ones only in the page cache: a flush must precede
            # their exposure.
            self._flush(partition.log)
        self._changed(partition.topic_partition)
        if not led:
            self._notify_leadership(partition.topic_partition, leads=True)

    def _resign(self, partition: Partition, state: PartitionImage) -> None:
        """Stop leading or following. If this replica led, notify waiting requests and the users of its leadership."""
        if self._followers is not None:
            self._followers.drop(partition.topic_partition)
        led = partition.is_leader
        partition.resign(state)
        self._changed(partition.topic_partition)
        if led:
            self._notify_leadership(partition.topic_partition, leads=False)

    def resign_all(self) -> None:
        """Stop leading all partitions until the next command: this broker is not registered any more, so others may
        lead. The controller then sends the leader epochs again.
        """
        for partition in [each for each in self.partitions.values() if each.is_leader]:
            self._resign(partition, partition.image.before())

    def _notify_leadership(self, topic_partition: TopicPartition, *, leads: bool) -> None:
        for listener in self._leadership_listeners:
            listener(topic_partition, leads)

    async def stop_replicas(self, command: StopReplica) -> Answer:
        """Process a StopReplica: stop hosting these replicas, and delete the logs marked for deletion.

        Raises STALE_CONTROLLER_EPOCH and STALE_BROKER_EPOCH; then nothing has changed, as with a leader epoch older
        than the known one (FENCED_LEADER_EPOCH).
        """
        async with self._state_changes:
            self._fence.admit(command)
            if self._followers is not None:
                await self._followers.stop(self._to_stop(command))
            answer: dict[TopicPartition, ErrorCode] = {}
            async for stopped in in_slices(command.partitions, self._clock):
                answer[stopped.topic_partition] = self._stop(stopped)
            return answer

    def _is_fenced(self, stopped: StoppedReplica) -> bool:
        partition, offline = self.partitions.get(stopped.topic_partition), self._offline.get(stopped.topic_partition)
        state = partition.image if partition is not None else offline.state if offline is not None else None
        return state is not None and 0 <= stopped.leader_epoch < state.leader_epoch

    def _to_stop(self, command: StopReplica) -> list[TopicPartition]:
        return [each.topic_partition for each in command.partitions if not self._is_fenced(each)]

    def _stop(self, stopped: StoppedReplica) -> ErrorCode:
        if self._is_fenced(stopped):
            return ErrorCode.FENCED_LEADER_EPOCH
        topic_partition = stopped.topic_partition
        partition = self.partitions.get(topic_partition)
        self.partitions.pop(topic_partition, None)
        self._offline.pop(topic_partition, None)
        error_code = ErrorCode.NONE
        if stopped.delete_partition:
            if partition is not None and partition.log.topic_id is not None:
                self.topic_names.pop(partition.log.topic_id, None)
            try:
                self._log_manager.delete(topic_partition, self._clock.now_ms())
            except ApiError as error:  # its disk has just failed; the next start renames the log
                logger.error("The log of %s could not be deleted: %s", topic_partition, error)
                error_code = error.error_code
        if partition is not None:
            self._resign(partition, partition.image)
        return error_code

    async def _set_strays_aside(self, command: LeaderAndIsr, slices: Slices) -> None:
        wanted = {(topic.topic, state.partition) for topic, state in _states(command)}
        for topic_partition in [each for each in self._offline if each not in wanted]:
            del self._offline[topic_partition]
        async for topic_partition in in_slices(self.strays.unknown_to(command), slices):
            partition = self.partitions.pop(topic_partition, None)
            if partition is not None:
                self._resign(partition, partition.image)
            self.strays.set_aside(topic_partition)

    # -- directories ---------------------------------------------------------------------------------------------------

    def directory_failed(self, path: str) -> None:
        """Take the replicas in the log directory at `path`, or the one whose log is at `path`, offline: requests get
        KAFKA_STORAGE_ERROR.
        """
        lost = [each for each in self.partitions.values() if path in (each.log.directory.path, each.log.path)]
        for partition in lost:
            self._lose(partition)
        names = ",".join(str(partition.topic_partition) for partition in lost)
        logger.warning("Broker %d stopped serving partitions %s: %s failed", self._broker_id, names, path)

    def _lose(self, partition: Partition) -> None:
        topic_partition, log = partition.topic_partition, partition.log
        del self.partitions[topic_partition]
        error = log.directory.offline_error()
        self._offline[topic_partition] = OfflineReplica(error, log.topic_id, partition.image)
        self._resign(partition, partition.image)

    async def retry_failed_logs(self) -> None:
        """Create logs that failed for lack of disk space. Call it regularly."""
        async with self._state_changes:
            refused = [each for each in self._offline.items() if isinstance(each[1].error, NoRoomError)]
            async for topic_partition, offline in in_slices(refused, self._clock):
                try:
                    partition = self._create(topic_partition, offline.topic_id, offline.state, is_new=True)
                except ApiError as error:
                    offline.error = detached(error)
                    return  # the disk lacks room for the others, too
                del self._offline[topic_partition]
                logger.info("%s is available again", topic_partition)
                self._take_role(partition, offline.state)

    async def restart_fetchers(self, change: Callable[[], None]) -> None:
        """Stop all follower fetches, call `change`, restart them."""
        async with self._state_changes:
            followers = self._followers
            assert followers is not None
            following = [each for each in self.partitions.values() if not each.is_leader and each.image.leader >= 0]
            await followers.stop([each.topic_partition for each in following])
            change()
            for partition in following:
                if self.partitions.get(partition.topic_partition) is partition:
                    followers.follow(partition)

    def metadata_changed(self, old: MetadataImage, new: MetadataImage) -> None:
        """Apply the topic configurations of a new metadata image to the logs."""
        if new.configs is old.configs:
            return
        config_of = cache(self._log_config_of)
        for topic_partition, partition in self.partitions.items():
            partition.log.config = config_of(topic_partition.topic)

    def use_log(self, topic_partition: TopicPartition, log: UnifiedLog) -> None:
        """Use `log` for a replica that was moved: it has the same contents as the replica's log, and replaces it."""
        partition = self.partitions[topic_partition]
        partition.log = log
        if partition.is_leader:
            partition.advance_high_watermark()
        self._changed(topic_partition)

    # -- look-up -------------------------------------------------------------------------------------------------------

    def partition(self, topic_partition: TopicPartition) -> Partition:
        """The hosted replica. Raises KAFKA_STORAGE_ERROR, NOT_LEADER_OR_FOLLOWER, or UNKNOWN_TOPIC_OR_PARTITION."""
        partition = self.partitions.get(topic_partition)
        if partition is None:
            offline = self._offline.get(topic_partition)
            if offline is not None:
                raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, str(offline.error))
            known = self._is_known(topic_partition)
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER if known else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            raise ApiError(code, f"this broker holds no replica of {topic_partition}")
        return partition


def _states(command: LeaderAndIsr) -> Iterator[tuple[TopicStates, PartitionImage]]:
    """Each partition of a command, with its topic."""
    for topic in command.topics:
        for state in topic.partitions:
            yield topic, state
