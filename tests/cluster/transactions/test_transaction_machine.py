"""Random events at one transactional id, against a naive model; at any moment another coordinator loads."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from cluster.transactions.producer_sessions import Initialized
from protocol.errors import ErrorCode
from protocol.topic_partition import TopicPartition
from tests.cluster.transactions.transaction_harness import ID, Harness

PARTITIONS = st.sampled_from([TopicPartition("t", number) for number in range(3)])
CONCURRENT = ErrorCode.CONCURRENT_TRANSACTIONS


class TransactionMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.coordinator = Harness()
        self.producers: list[tuple[int, int]] = []
        """All identities that were allocated."""
        self.current: tuple[int, int] | None = None
        """The identity that is not fenced."""
        self.open: set[TopicPartition] | None = None
        self.deciding: tuple[bool, set[TopicPartition]] | None = None
        """Whether the transaction commits, and the partitions that still lack a marker."""
        self.last: bool | None = None
        """How this producer's last transaction ended."""

    def decide(self, *, commit: bool) -> None:
        assert self.open is not None
        self.deciding, self.open = (commit, self.open), None

    def init(self, answer: Initialized | None) -> None:
        assert answer is not None
        if self.deciding is not None:
            assert answer == Initialized(CONCURRENT)
        elif self.open is not None:
            assert answer == Initialized(CONCURRENT)
            self.current = None
            self.decide(commit=False)
        else:
            assert answer.error_code is ErrorCode.NONE
            self.current = answer.producer_id, answer.producer_epoch
            assert all(self.current > before for before in self.producers)
            self.producers.append(self.current)
            self.last = None

    @rule()
    def a_new_producer(self) -> None:
        self.init(self.coordinator.init())

    @precondition(lambda self: self.current is not None)
    @rule()
    def the_producer_goes_on(self) -> None:
        self.init(self.coordinator.init(self.current))

    @precondition(lambda self: self.producers)
    @rule(data=st.data())
    def a_fenced_producer_goes_on(self, data: st.DataObject) -> None:
        before = data.draw(st.sampled_from(self.producers))
        if before == self.current or self.open is not None or self.deciding is not None:
            return
        if self.coordinator.metadata.last_producer_epoch == before[1]:
            return  # this is taken as a retry
        assert self.coordinator.init(before) == Initialized(ErrorCode.PRODUCER_FENCED)

    @precondition(lambda self: self.producers)
    @rule(data=st.data(), partition=PARTITIONS)
    def add(self, data: st.DataObject, partition: TopicPartition) -> None:
        who = data.draw(st.sampled_from(self.producers))
        answer = self.coordinator.add(who, partition)
        if who != self.current:
            assert answer is ErrorCode.PRODUCER_FENCED
        elif self.deciding is not None:
            assert answer is CONCURRENT
        else:
            assert answer is ErrorCode.NONE
            self.open = (self.open or set()) | {partition}

    @precondition(lambda self: self.producers)
    @rule(data=st.data(), commit=st.booleans())
    def end(self, data: st.DataObject, commit: bool) -> None:
        who = data.draw(st.sampled_from(self.producers))
        answer = self.coordinator.end(who, commit=commit)
        if who != self.current:
            assert answer is ErrorCode.PRODUCER_FENCED
        elif self.deciding is not None:
            assert answer is CONCURRENT
        elif self.open is None:
            assert answer is (ErrorCode.NONE if self.last is commit else ErrorCode.INVALID_TXN_STATE)
        else:
            assert answer is ErrorCode.NONE
            self.decide(commit=commit)

    @precondition(lambda self: self.open is not None)
    @rule()
    def the_time_is_over(self) -> None:
        self.coordinator.advance(60_001)
        self.coordinator.handle(self.coordinator.shard.abort_if_late, ID)
        self.current = None
        self.decide(commit=False)

    @precondition(lambda self: self.deciding is not None)
    @rule(data=st.data())
    def mark(self, data: st.DataObject) -> None:
        assert self.deciding is not None
        commit, partitions = self.deciding
        marked = data.draw(st.sampled_from(sorted(partitions)))
        assert self.coordinator.mark(marked).is_commit is commit
        partitions.remove(marked)
        if not partitions:
            self.coordinator.sent.popleft()
            self.deciding, self.last = None, commit

    @rule()
    def another_coordinator(self) -> None:
        self.coordinator = self.coordinator.restarted()
        if self.deciding is not None:
            (markers,) = self.coordinator.sent
            assert self.deciding[1] <= set(markers.partitions)
            self.deciding = self.deciding[0], set(markers.partitions)

    @invariant()
    def the_log_says_the_same(self) -> None:
        assert self.coordinator.replayed() == {
            each: self.coordinator.shard._table.transactions[each].metadata for each in self.coordinator.shard.ids()
        }

    @invariant()
    def markers_are_sent_once(self) -> None:
        assert len(self.coordinator.sent) == (self.deciding is not None)


TestTransactions = TransactionMachine.TestCase
TestTransactions.settings = settings(max_examples=50, stateful_step_count=40)
