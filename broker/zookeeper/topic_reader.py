"""Reads topics as the coordination tree has them: assignments, and the states of partitions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from broker.zookeeper.pipelined_reads import each_of
from cluster import znodes
from cluster.controller.start_up import ReadTopic
from cluster.zookeeper.coordination import READS_PER_REQUEST, Coordination, NoNodeError, Watch, ZnodeStat


class TopicReader:
    """Reads of one session. Raises CoordinationError."""

    def __init__(self, coordination: Coordination) -> None:
        self._coordination = coordination

    async def assignment(self, name: str, watch: Watch | None = None) -> znodes.TopicAssignment | None:
        """Which brokers hold a topic; None when there is no such topic. `watch` fires when that changes."""
        try:
            data, _ = await self._coordination.get(znodes.topic_path(name), watch)
        except NoNodeError:
            return None
        return znodes.TopicAssignment.decode(name, data)

    async def read_all(self, names: Iterable[str], watch: Watch | None = None) -> list[ReadTopic]:
        """Topics with their partitions, as far as a crash let them be created; `watch` as of `assignment`."""
        wanted = list(names)
        read = await each_of(wanted, lambda name: self.assignment(name, watch))
        assignments = {name: each for name, each in zip(wanted, read, strict=True) if each is not None}
        partitions = [(name, number) for name, each in assignments.items() for number in sorted(each.partitions)]
        parts = [partitions[at : at + READS_PER_REQUEST] for at in range(0, len(partitions), READS_PER_REQUEST)]
        states: dict[str, dict[int, tuple[znodes.PartitionState, ZnodeStat]]] = {name: {} for name in assignments}
        for part in await each_of(parts, self._states):
            for name, number, state, stat in part:
                states[name][number] = state, stat
        return await each_of(assignments, lambda name: self._topic(name, assignments[name], states[name]))

    async def read(self, name: str, watch: Watch | None = None) -> ReadTopic | None:
        """See `read_all`. None when there is no such topic."""
        return next(iter(await self.read_all([name], watch)), None)

    async def _states(
        self, partitions: Sequence[tuple[str, int]]
    ) -> list[tuple[str, int, znodes.PartitionState, ZnodeStat]]:
        """The states of those partitions that have one."""
        found = await self._coordination.get_each([znodes.partition_state_path(*each) for each in partitions])
        return [
            (name, number, znodes.PartitionState.decode(name, number, read[0]), read[1])
            for (name, number), read in zip(partitions, found, strict=True)
            if read is not None
        ]

    async def _topic(
        self,
        name: str,
        assignment: znodes.TopicAssignment,
        read: Mapping[int, tuple[znodes.PartitionState, ZnodeStat]],
    ) -> ReadTopic:
        """A topic of its parts, and of the nodes that a crash left without a state."""
        states = {number: (state, stat.version) for number, (state, stat) in read.items()}
        written_at = {number: stat.mzxid for number, (_, stat) in read.items()}
        if len(states) == len(assignment.partitions):
            return ReadTopic(name, assignment, states, True, written_at)
        try:
            numbers = sorted(map(int, (await self._coordination.children(znodes.partitions_path(name)))[0]))
        except NoNodeError:
            return ReadTopic(name, assignment, {}, has_partitions_node=False)
        stateless = [number for number in numbers if number in assignment.partitions and number not in states]
        return ReadTopic(name, assignment, states, True, written_at, stateless)
