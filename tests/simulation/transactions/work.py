"""One session of a transactional client, and the history that it records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from client.groups import GroupMetadata
from client.kafka_client import KafkaClient
from protocol.topic_partition import TopicPartition
from tests.simulation import history
from tests.simulation.history import FAILED, OK, UNKNOWN
from tests.simulation.transactions.session import AbortError, FencedError

if TYPE_CHECKING:
    from tests.simulation.transactions.workload import Workload


class Work:
    """One session of a client, and its history."""

    def __init__(self, workload: Workload, client: KafkaClient, transactional_id: str, reader: str) -> None:
        self.session = workload.new_session(client, transactional_id)
        self.name = ""
        self._reader = reader
        self._clients = workload.clients
        self._workload = workload
        self._transactions = 0
        self._written: dict[TopicPartition, None] = {}
        """The partitions of the transaction."""

    async def begin(self) -> None:
        """Start a new session, or bump this one's epoch."""
        await self.session.begin()
        self.name = f"{self._reader}-{self.session.epoch}"
        clients, session = self._clients, self.session
        clients.feed(history.SessionBegun(clients.now_s, session.transactional_id, self.name, session.epoch))

    def next_transaction(self) -> str:
        """A name for the next transaction."""
        self._transactions += 1
        return f"{self.name}#{self._transactions}"

    async def write(self, transaction: str, partition: TopicPartition, values: Sequence[bytes]) -> None:
        """Write values. Raises the session's errors."""
        clients, log = self._clients, self._clients.log_of(partition)
        self._written[partition] = None
        self.invoke(transaction, partition, values)
        outcomes = [(UNKNOWN, -1)] * len(values)
        try:
            outcomes = [(OK, offset) for offset in await self.session.write(partition, values)]
        finally:
            for value, outcome in zip(values, outcomes, strict=True):
                clients.feed(history.SendDone(clients.now_s, log, value, *outcome))

    def invoke(self, transaction: str, partition: TopicPartition, values: Sequence[bytes]) -> None:
        """Record the values before they are written."""
        clients, log = self._clients, self._clients.log_of(partition)
        for value in values:
            clients.feed(history.SendInvoked(clients.now_s, self.name, log, value, True, transaction))

    async def commit_offsets(self, group: GroupMetadata, offsets: dict[TopicPartition, int]) -> None:
        """Add offsets to the transaction, for a member if the group has any."""
        clients, invoked = self._clients, self._clients.now_s
        await self.session.commit_offsets(group, offsets)
        if group.member_id:
            clients.feed(history.OffsetsTaken(invoked, clients.now_s, group.group_id, group.generation))

    async def end(self, transaction: str, *, commit: bool, offsets: dict[TopicPartition, int] | None = None) -> bool:
        """End a transaction, and commit its offsets with it; returns whether the commit is certain. If a request may
        still be in flight, the session bumps its epoch. Raises FencedError.
        """
        clients = self._clients
        written, self._written = list(self._written), {}
        self._workload.strikes.before_end(self.session.transactional_id, written)
        clients.feed(history.EndInvoked(clients.now_s, transaction, self.name, commit))
        numbers = self._workload.invoke_commits(offsets or {}) if commit else []
        outcome = UNKNOWN
        try:
            await self.session.end(commit=commit)
            outcome = OK
        except AbortError:
            outcome = self._refused()
        except FencedError:
            outcome = self._refused()
            raise
        finally:
            clients.feed(history.EndDone(clients.now_s, transaction, outcome))
            for number in numbers:
                clients.feed(history.CommitDone(clients.now_s, number, outcome))
        if self.session.needs_new_epoch or outcome != OK:
            await self.begin()
        return commit and outcome == OK

    def _refused(self) -> str:
        return FAILED if self.session.was_asked_to_end == 1 else UNKNOWN
