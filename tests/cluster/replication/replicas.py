"""Replicas of one partition on several brokers, and the controller's side of it, all in one thread: objects are handed
over directly instead of being encoded.
"""

from __future__ import annotations

from cluster.metadata_image import PartitionImage
from cluster.replication import follower
from cluster.replication.follower import Decision, FetchPosition, Step
from cluster.replication.isr import IsrChange, IsrRules, LeaderActions, check_lag, complete_change, record_fetch
from cluster.replication.partition import ACKS_ALL, Partition
from cluster.replication.reads import FetchParams, IsolationLevel, LogReadInfo
from protocol.errors import ApiError, ErrorCode
from storage.log_config import LogConfig
from tests.kit.memory_file_system import MemoryFileSystem
from tests.storage.support import T0, TOPIC_ID, TP, batch_of, new_log, reopen, values_in

LAG_MS = 1000


def fetch_params(broker_id: int, broker_epoch: int = -1) -> FetchParams:
    """The parameters of a follower's fetch."""
    return FetchParams(
        IsolationLevel.READ_UNCOMMITTED,
        reads_zstd=True,
        max_wait_ms=0,
        min_bytes=1,
        max_bytes=1 << 20,
        replica_id=broker_id,
        replica_epoch=broker_epoch,
    )


class Replicas:
    """Brokers 1, 2 ... with a replica each; the first leads. `state` is the controller's committed state."""

    def __init__(self, count: int = 3, *, min_isr: int = 1, isr: tuple[int, ...] | None = None) -> None:
        self.config = LogConfig(min_insync_replicas=min_isr)
        brokers = tuple(range(1, count + 1))
        self.state = PartitionImage(0, 1, 0, brokers, isr or brokers, 0, 1)
        self.ineligible: set[tuple[int, int]] = set()
        """(broker id, epoch) of the ineligible replicas."""
        self.rules = IsrRules(LAG_MS, lambda *broker: broker not in self.ineligible)
        self.disks = {each: MemoryFileSystem() for each in brokers}
        self.partitions = {
            each: Partition(TP, new_log(self.config, self.disks[each]), 0, self.state, self.rules) for each in brokers
        }
        self.now_ms = 0
        self.max_bytes = 1 << 20
        """The maximum that a follower gets at once; always at least one batch."""
        for each in brokers:
            self.tell(each)

    # -- the controller ------------------------------------------------------------------------------------------------

    @property
    def leader(self) -> Partition:
        """The replica that the controller elected as the leader."""
        return self.partitions[self.state.leader]

    def tell(self, broker_id: int) -> None:
        """Send a broker its role."""
        if self.state.leader == broker_id:
            self.partitions[broker_id].become_leader(self.state, self.now_ms)
        else:
            self.partitions[broker_id].resign(self.state)

    def elect(self, leader: int, isr: tuple[int, ...] | None = None, *, told: tuple[int, ...] | None = None) -> None:
        """Elect a leader, and send the new state to the brokers in `told` (default: all)."""
        self.state = self.state.replace(
            leader=leader,
            leader_epoch=self.state.leader_epoch + 1,
            isr=isr or self.state.isr,
            partition_epoch=self.state.partition_epoch + 1,
        )
        for each in self.partitions if told is None else told:
            self.tell(each)

    def decide(self, change: IsrChange) -> PartitionImage | ErrorCode:
        """The controller's answer to AlterPartition: the change is applied unless the state has changed."""
        state = self.state
        if change.leader_epoch != state.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if change.broker_ids == state.isr:
            return state
        if change.partition_epoch != state.partition_epoch:
            return ErrorCode.INVALID_UPDATE_VERSION
        self.state = state.replace(isr=change.broker_ids, partition_epoch=state.partition_epoch + 1)
        return self.state

    def alter(self, outcome: LeaderActions) -> None:
        """Send a change to the controller and return its answer."""
        assert outcome.change is not None
        complete_change(self.leader, outcome.change, self.decide(outcome.change))

    # -- data ----------------------------------------------------------------------------------------------------------

    def produce(self, *values: bytes, acks: int = ACKS_ALL) -> int:
        """Append a batch at the leader; returns its last offset."""
        return self.leader.append_as_leader(batch_of(*values), required_acks=acks, now_ms=T0).last_offset

    def read(
        self, broker_id: int, asked: FetchPosition, broker_epoch: int = -1, leader: Partition | None = None
    ) -> LogReadInfo:
        """Read from the leader as a follower. Raises ApiError."""
        return (leader or self.leader).read(
            fetch_params(broker_id, broker_epoch),
            asked.fetch_offset,
            self.max_bytes,
            min_one_message=True,
            topic_id=TOPIC_ID,
            current_leader_epoch=asked.leader_epoch,
            last_fetched_epoch=asked.last_fetched_epoch,
        )

    def fetch(self, broker_id: int, broker_epoch: int = -1, *, is_lost: bool = False) -> tuple[Step, LeaderActions]:
        """One fetch of a follower from the leader that it knows: what the follower does with the answer, and the
        follow-up work of the leader. If `is_lost`, the answer never arrives.
        """
        partition = self.partitions[broker_id]
        leader = self.partitions[partition.image.leader]
        asked = follower.position(partition.log, partition.leader_epoch)
        outcome, info, error_code = LeaderActions(), None, ErrorCode.NONE
        try:
            info = self.read(broker_id, asked, broker_epoch, leader)
        except ApiError as error:
            error_code = error.error_code
        records = _bytes_of(info)
        if info is not None and info.diverging_epoch is None:
            end_offset = leader.log.log_end_offset
            outcome = record_fetch(
                leader,
                fetch_params(broker_id, broker_epoch),
                asked.fetch_offset,
                asked.log_start_offset,
                end_offset,
                self.now_ms,
            )
        if is_lost:
            return Step.IGNORE, outcome
        decision = follower.after_answer(
            partition.log,
            partition.leader_epoch,
            asked,
            error_code,
            None if info is None else info.diverging_epoch,
            -1 if info is None else info.log_start_offset,
            int.from_bytes(records[:8]) if len(records) else None,
        )
        if decision.step is Step.FETCH_OFFSETS:
            log = leader.log
            decision = follower.after_offsets(partition.log, log.log_start_offset, log.log_end_offset)
        self._do(partition, decision, records, info)
        return decision.step, outcome

    def _do(self, partition: Partition, decision: Decision, records: memoryview, info: LogReadInfo | None) -> None:
        if decision.step is Step.TRUNCATE:
            task = partition.begin_truncation(decision.offset, T0)
            task.run()
            partition.end_truncation(task)
        elif decision.step in (Step.TRUNCATE_FULLY, Step.TRUNCATE_FULLY_AND_APPEND):
            task = partition.begin_full_truncation(decision.offset, T0)
            task.run()
            partition.end_truncation(task)
        if decision.step in (Step.APPEND, Step.TRUNCATE_FULLY_AND_APPEND):
            assert info is not None
            partition.append_as_follower(
                records,
                leader_epoch=partition.leader_epoch,
                leader_high_watermark=info.high_watermark,
                leader_log_start_offset=info.log_start_offset,
                now_ms=T0,
            )

    def catch_up(self, *broker_ids: int) -> None:
        """Fetch until nothing changes any more; changes of the ISR are applied."""
        for _ in range(2):
            for broker_id in broker_ids:
                for _ in range(50):
                    before = self.end(broker_id)
                    step, outcome = self.fetch(broker_id)
                    if outcome.change is not None:
                        self.alter(outcome)
                    if step is Step.APPEND and self.end(broker_id) == before:
                        break
                else:
                    raise AssertionError(f"broker {broker_id} does not get anywhere")

    def pass_time(self, milliseconds: int) -> LeaderActions:
        """Advance the time, and let the leader check its followers."""
        self.now_ms += milliseconds
        return check_lag(self.leader, self.now_ms)

    def look_at(self, leader: Partition) -> LeaderActions:
        """A leader, or a deposed one that does not know it, checks its followers."""
        return check_lag(leader, self.now_ms)

    def restart(self, broker_id: int) -> None:
        """Restart a broker's process, with the high watermark of an old checkpoint."""
        log = reopen(self.disks[broker_id], self.config)
        self.partitions[broker_id] = Partition(TP, log, 0, self.state.replace(leader=-1, leader_epoch=-1), self.rules)

    # -- looking -------------------------------------------------------------------------------------------------------

    def end(self, broker_id: int) -> int:
        """The log end of a broker's replica."""
        return self.partitions[broker_id].log.log_end_offset

    def values(self, broker_id: int) -> list[bytes | None]:
        """The records of a broker's replica."""
        return [value for _, value in values_in(self.partitions[broker_id].log)]


def _bytes_of(info: LogReadInfo | None) -> memoryview:
    found = None if info is None else info.records
    if found is None or found.file is None:
        return memoryview(b"")
    return memoryview(bytearray(found.file.pread(found.position, found.size)))
