"""Three replicas of a partition under random elections, restarts, delays and lost answers: acknowledged records
survive.

The invariants are those of Kafka's TLA+ models (Kip320, AsyncIsr), checked after every step.
"""

from __future__ import annotations

import random

import pytest

from cluster.replication.isr import IsrChange, LeaderActions, complete_change
from cluster.replication.partition import ACKS_ALL, Partition
from protocol.errors import ApiError
from tests.cluster.replication.replicas import LAG_MS, Replicas
from tests.storage.support import T0, batch_of

STEPS = 250
WEIGHTS = {"produce": 4, "fetch": 12, "decide": 3, "time": 1, "elect": 0.7, "tell": 4, "restart": 0.4}


class Run:
    """One random run. The controller only elects from the ISR that it has committed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.replicas = Replicas(3, min_isr=self.random.choice((1, 2)))
        self.replicas.max_bytes = 1
        self.changes: list[tuple[Partition, IsrChange]] = []
        """In flight to the controller, some of them for the second time."""
        self.unacknowledged: list[tuple[Partition, int, int, bytes]] = []
        """Leader, its epoch, last offset and value of each batch whose producer is waiting."""
        self.acknowledged: list[bytes] = []
        self.high_watermarks: dict[tuple[int, int], int] = {}
        self.count = 0

    def step(self) -> None:
        [step] = self.random.choices(list(WEIGHTS), list(WEIGHTS.values()))
        getattr(self, step)()
        self.look_at_producers()
        self.check()

    def some_broker(self) -> int:
        return self.random.randint(1, 3)

    def produce(self) -> None:
        """Produce to any broker that believes it is the leader."""
        partition = self.replicas.partitions[self.some_broker()]
        self.count += 1
        value = str(self.count).encode()
        try:
            info = partition.append_as_leader(batch_of(value), required_acks=ACKS_ALL, now_ms=T0)
        except ApiError:
            return
        self.unacknowledged.append((partition, partition.leader_epoch, info.last_offset, value))

    def fetch(self) -> None:
        broker_id = self.some_broker()
        partition = self.replicas.partitions[broker_id]
        leader = partition.image.leader
        if leader in (broker_id, -1):
            return
        _, outcome = self.replicas.fetch(broker_id, is_lost=self.random.random() < 0.2)
        self.send(self.replicas.partitions[leader], outcome)

    def send(self, leader: Partition, outcome: LeaderActions) -> None:
        if outcome.change is not None:
            self.changes.append((leader, outcome.change))

    def decide(self) -> None:
        """The controller gets a change; its answer may be lost, and the change may be resent."""
        if not self.changes:
            return
        leader, change = self.changes.pop(self.random.randrange(len(self.changes)))
        answer = self.replicas.decide(change)
        if self.random.random() < 0.3:
            self.changes.append((leader, change))
        else:
            self.send(leader, complete_change(leader, change, answer))

    def time(self) -> None:
        self.replicas.now_ms += self.random.choice((LAG_MS // 4, LAG_MS * 2))
        for partition in self.replicas.partitions.values():
            if partition.is_leader:
                outcome = self.replicas.look_at(partition)
                self.send(partition, outcome)

    def elect(self) -> None:
        """Elect another leader from the ISR; some brokers learn of it at once."""
        isr = self.replicas.state.isr
        leader = self.random.choice(isr)
        kept = tuple(each for each in isr if each == leader or self.random.random() < 0.6)
        told = tuple(each for each in (1, 2, 3) if self.random.random() < 0.6)
        self.replicas.elect(leader, kept, told=told)

    def tell(self) -> None:
        broker_id = self.some_broker()
        if self.replicas.partitions[broker_id].leader_epoch < self.replicas.state.leader_epoch:
            self.replicas.tell(broker_id)

    def restart(self) -> None:
        """Restart a process; its writes are in the page cache. The controller removes it from the ISR, if it is not the
        last member.
        """
        broker_id = self.some_broker()
        self.replicas.restart(broker_id)
        state = self.replicas.state
        rest = tuple(each for each in state.isr if each != broker_id) or state.isr
        self.replicas.elect(self.random.choice(rest), rest, told=())

    def look_at_producers(self) -> None:
        waiting = []
        for leader, epoch, last_offset, value in self.unacknowledged:
            if leader.leader_epoch != epoch or leader not in self.replicas.partitions.values():
                continue
            try:
                if leader.is_acknowledged(last_offset, ACKS_ALL):
                    self.acknowledged.append(value)
                else:
                    waiting.append((leader, epoch, last_offset, value))
            except ApiError:
                continue
        self.unacknowledged = waiting

    # -- invariants ----------------------------------------------------------------------------------------------------

    def check(self) -> None:
        replicas = self.replicas
        members = [replicas.partitions[each] for each in replicas.state.isr]
        for leader in (each for each in replicas.partitions.values() if each.is_leader):
            key = leader.leader_epoch, id(leader)
            assert leader.high_watermark >= self.high_watermarks.get(key, 0), "it only rises within an epoch"
            self.high_watermarks[key] = leader.high_watermark
        for each in replicas.partitions.values():
            assert each.log.log_start_offset <= each.high_watermark <= each.log.log_end_offset
        committed = max((each.high_watermark for each in replicas.partitions.values()), default=0)
        for member in members:
            assert member.log.log_end_offset >= committed, "what is committed is on every member of the ISR"
        epochs = [each.leader_epoch for each in replicas.partitions.values() if each.is_leader]
        assert len(epochs) == len(set(epochs)), "one leader in each epoch"

    def heal(self) -> None:
        """All brokers learn of the newest leader, and catch up with it."""
        replicas = self.replicas
        self.changes = []
        replicas.elect(replicas.state.leader)
        replicas.catch_up(*(each for each in (1, 2, 3) if each != replicas.state.leader))
        values = replicas.values(replicas.state.leader)
        for each in (1, 2, 3):
            assert replicas.values(each) == values
        assert sorted(replicas.state.isr) == [1, 2, 3]
        missing = set(self.acknowledged) - set(values)
        assert not missing, missing
        assert len(set(values)) == len(values)


@pytest.mark.parametrize("seed", range(60))
def test_what_was_acknowledged_is_there_in_the_end(seed: int) -> None:
    run = Run(seed)
    for _ in range(STEPS):
        run.step()
    run.heal()


def test_runs_acknowledge_something() -> None:
    """Otherwise runs that never do anything would pass."""
    acknowledged = 0
    for seed in range(10):
        run = Run(seed)
        for _ in range(STEPS):
            run.step()
        acknowledged += len(run.acknowledged)
    assert acknowledged > 30
