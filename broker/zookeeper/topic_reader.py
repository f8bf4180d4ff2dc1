"""Reads topics, assignments and partition states from the coordination tree: many nodes at once, skipping unreadable
ones.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final, TypeVar

from cluster import znodes
from cluster.controller.start_up import ReadTopic
from cluster.znodes import ZnodeFormatError
from zookeeper.coordination import READS_PER_REQUEST, Coordination, NoNodeError, Watch, ZnodeStat

READS_IN_FLIGHT = 100
"""Reads in flight at once."""

logger = logging.getLogger("kafka.zk.KafkaZkClient")

T = TypeVar("T")
R = TypeVar("R")


async def each_of(items: Iterable[T], read: Callable[[T], Awaitable[R]]) -> list[R]:
    """The result of `read` for each item, in order; many reads are in flight at once."""
    waiting = list(enumerate(items))
    results: dict[int, R] = {}
    left = iter(waiting)

    async def read_some() -> None:
        for at, item in left:
            results[at] = await read(item)

    await asyncio.gather(*[read_some() for _ in range(min(len(waiting), READS_IN_FLIGHT))])
    return [results[at] for at in range(len(waiting))]


class DamagedNodes:
    """The nodes that this broker found damaged. The log names each once, and again when it can be read."""

    def __init__(self) -> None:
        self._reported: dict[str, str] = {}

    def report(self, error: ZnodeFormatError, consequence: str) -> None:
        """Report an unreadable node; `consequence` describes what does not work until it is rewritten."""
        if self._reported.get(error.path) != str(error):
            self._reported[error.path] = str(error)
            logger.error("%s; until it is rewritten, %s", error, consequence)

    def is_readable(self, path: str) -> None:
        """Report that a node can be read, or is gone."""
        if self._reported and self._reported.pop(path, None) is not None:
            logger.info("%s can be read again, or is gone", path)


class Unreadable(enum.Enum):
    """Stands for the content of a node that cannot be decoded."""

    UNREADABLE = enum.auto()


UNREADABLE: Final = Unreadable.UNREADABLE

FoundState = tuple[znodes.PartitionState, ZnodeStat] | Unreadable


class TopicReader:
    """Reads of one session. Raises CoordinationError."""

    def __init__(self, coordination: Coordination, damaged: DamagedNodes) -> None:
        self._coordination = coordination
        self._damaged = damaged

    async def assignment(self, name: str, watch: Watch | None = None) -> znodes.TopicAssignment | Unreadable | None:
        """The brokers of a topic's replicas, or None if the topic does not exist. `watch` fires when that changes."""
        path = znodes.topic_path(name)
        try:
            data, _ = await self._coordination.get(path, watch)
            found = znodes.TopicAssignment.decode(name, data)
        except NoNodeError:
            self._damaged.is_readable(path)
            return None
        except znodes.ZnodeFormatError as error:
            self._damaged.report(error, "the topic is not served")
            return UNREADABLE
        self._damaged.is_readable(path)
        return found

    async def read_all(
        self, names: Iterable[str], watch: Watch | None = None
    ) -> tuple[list[ReadTopic], dict[str, None]]:
        """The topics, with the partitions that were created before a possible crash, and the names of topics with
        unreadable nodes. `watch` fires when the node of a topic or a damaged state changes.
        """
        wanted = list(names)
        read = await each_of(wanted, lambda name: self.assignment(name, watch))
        found = dict(zip(wanted, read, strict=True))
        assignments = {name: each for name, each in found.items() if isinstance(each, znodes.TopicAssignment)}
        unreadable = {name: None for name, each in found.items() if each is UNREADABLE}
        partitions = [(name, number) for name, each in assignments.items() for number in sorted(each.partitions)]
        parts = [partitions[at : at + READS_PER_REQUEST] for at in range(0, len(partitions), READS_PER_REQUEST)]
        states: dict[str, dict[int, FoundState]] = {name: {} for name in assignments}
        for part in await each_of(parts, lambda part: self._states(part, watch)):
            for name, number, state in part:
                states[name][number] = state
        topics = await each_of(assignments, lambda name: self._topic(name, assignments[name], states[name]))
        return topics, unreadable

    async def read(self, name: str, watch: Watch | None = None) -> ReadTopic | Unreadable | None:
        """See `read_all`. Returns None if the topic does not exist."""
        topics, unreadable = await self.read_all([name], watch)
        return UNREADABLE if unreadable else next(iter(topics), None)

    async def _states(
        self, partitions: Sequence[tuple[str, int]], watch: Watch | None
    ) -> list[tuple[str, int, FoundState]]:
        """The states of those partitions that have one."""
        found = await self._coordination.get_each([znodes.partition_state_path(*each) for each in partitions])
        states: list[tuple[str, int, FoundState]] = []
        for (name, number), read in zip(partitions, found, strict=True):
            if read is not None:
                try:
                    state: FoundState = znodes.PartitionState.decode(name, number, read[0]), read[1]
                except znodes.ZnodeFormatError:
                    state = await self._watched_state(name, number, watch)
                else:
                    self._damaged.is_readable(znodes.partition_state_path(name, number))
                states.append((name, number, state))
        return states

    async def _watched_state(self, name: str, number: int, watch: Watch | None) -> FoundState:
        """Read a state again that could not be decoded, now with a watch."""
        path = znodes.partition_state_path(name, number)
        try:
            data, stat = await self._coordination.get(path, watch)
            return znodes.PartitionState.decode(name, number, data), stat
        except NoNodeError:  # the watch on the topic's node reports its deletion
            return UNREADABLE
        except znodes.ZnodeFormatError as error:
            self._damaged.report(error, "the partition has no leader")
            return UNREADABLE

    async def _topic(self, name: str, assignment: znodes.TopicAssignment, read: Mapping[int, FoundState]) -> ReadTopic:
        """Combine a topic from its parts, and find the partitions that a crash left without a state."""
        found = {number: each for number, each in read.items() if not isinstance(each, Unreadable)}
        states = {number: (state, stat.version) for number, (state, stat) in found.items()}
        written_at = {number: stat.mzxid for number, (_, stat) in found.items()}
        damaged = [number for number in read if number not in found]
        if len(read) == len(assignment.partitions):
            return ReadTopic(name, assignment, states, True, written_at, damaged=damaged)
        try:
            numbers = sorted(map(int, (await self._coordination.children(znodes.partitions_path(name)))[0]))
        except NoNodeError:
            return ReadTopic(name, assignment, {}, has_partitions_node=False)
        stateless = [number for number in numbers if number in assignment.partitions and number not in read]
        return ReadTopic(name, assignment, states, True, written_at, stateless, damaged)
