"""Assigning the partitions of topics to the members of a group (range, roundrobin, cooperative-sticky), and the data
that members exchange in JoinGroup and SyncGroup (Kafka class `ConsumerProtocol`).

Pure functions of the data in the leader's JoinGroup response. Range and roundrobin return exactly the assignments of
Kafka's `RangeAssignor` and `RoundRobinAssignor` without racks. Cooperative-sticky keeps Kafka's guarantees (balance
first, then as few moves as possible, and no partition moves before its old owner has revoked it, KIP-429), but not its
exact choices.

A reader decodes a newer version as the newest one that it knows, and ignores the rest.
"""

from __future__ import annotations

import struct
from bisect import insort
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple, TypeVar

from protocol.messages.groups import ConsumerProtocolAssignment, ConsumerProtocolSubscription
from protocol.topic_partition import TopicPartition, by_topic
from protocol.wire.schema import Message, encode_versioned

Assignment = dict[str, list[TopicPartition]]
"""Partitions by member id; every member has an entry."""


class Subscription(NamedTuple):
    """Topics and partitions of a member. `generation` is the generation in which it got `owned`, -1 if it does not
    say.
    """

    topics: tuple[str, ...]
    owned: tuple[TopicPartition, ...] = ()
    generation: int = -1
    instance_id: str | None = None


Assignor = Callable[[Mapping[str, int], Mapping[str, Subscription]], Assignment]
"""Makes an assignment from the partition counts of the topics (without missing topics) and the members."""


def _in_order(members: Mapping[str, Subscription]) -> list[str]:
    """Member ids in Kafka's order: static members first, by instance id, then the others by member id."""
    return sorted(
        members, key=lambda member: (members[member].instance_id is None, members[member].instance_id or member)
    )


def assign_range(partition_counts: Mapping[str, int], members: Mapping[str, Subscription]) -> Assignment:
    """Assign each topic separately: the first member gets the first partitions, and so on."""
    assignment: Assignment = {member: [] for member in members}
    for topic, count in sorted(partition_counts.items()):
        interested = [member for member in _in_order(members) if topic in members[member].topics]
        if not interested:
            continue
        share, extra = divmod(count, len(interested))
        start = 0
        for index, member in enumerate(interested):
            size = share + (index < extra)
            assignment[member] += [TopicPartition(topic, partition) for partition in range(start, start + size)]
            start += size
    return assignment


def assign_round_robin(partition_counts: Mapping[str, int], members: Mapping[str, Subscription]) -> Assignment:
    """Deal out all partitions one by one to the members subscribed to them."""
    assignment: Assignment = {member: [] for member in members}
    order = _in_order(members)
    turn = 0
    for topic in sorted({topic for each in members.values() for topic in each.topics}):
        for partition in range(partition_counts.get(topic, 0)):
            while topic not in members[order[turn % len(order)]].topics:
                turn += 1
            assignment[order[turn % len(order)]].append(TopicPartition(topic, partition))
            turn += 1
    return assignment


def assign_cooperative_sticky(partition_counts: Mapping[str, int], members: Mapping[str, Subscription]) -> Assignment:
    """Assign as evenly as the subscriptions allow, with few moves. A partition that moves stays unassigned in this
    round.
    """
    owners = _owners(partition_counts, members)
    shares = _Shares(partition_counts, members, owners)
    shares.place_the_rest()
    shares.balance()
    return {
        member: sorted(each for each in partitions if owners.get(each, member) == member)
        for member, partitions in shares.partitions.items()
    }


def _owners(partition_counts: Mapping[str, int], members: Mapping[str, Subscription]) -> dict[TopicPartition, str]:
    """The owner of each partition by valid claims: the latest generation wins, and equal claims cancel out."""
    claims: defaultdict[TopicPartition, list[tuple[int, str]]] = defaultdict(list)
    for member, subscription in members.items():
        for partition in subscription.owned:
            if partition.partition < partition_counts.get(partition.topic, 0):
                claims[partition].append((subscription.generation, member))
    owners = {}
    for partition, claimants in claims.items():
        latest = max(generation for generation, _ in claimants)
        latest_claimants = [member for generation, member in claimants if generation == latest]
        if len(latest_claimants) == 1:
            owners[partition] = latest_claimants[0]
    return owners


class _Shares:
    """An assignment under construction."""

    def __init__(
        self,
        partition_counts: Mapping[str, int],
        members: Mapping[str, Subscription],
        owners: Mapping[TopicPartition, str],
    ) -> None:
        self.partitions: dict[str, list[TopicPartition]] = {member: [] for member in sorted(members)}
        self._wanting: dict[str, list[str]] = {
            topic: [member for member in sorted(members) if topic in members[member].topics]
            for topic in partition_counts
        }
        self._unplaced: list[TopicPartition] = []
        for topic, count in sorted(partition_counts.items()):
            for index in range(count):
                partition = TopicPartition(topic, index)
                owner = owners.get(partition)
                if owner is not None and owner in self._wanting[topic]:
                    self.partitions[owner].append(partition)
                elif self._wanting[topic]:
                    self._unplaced.append(partition)

    def place_the_rest(self) -> None:
        """Assign the free partitions to the members with the fewest, topics with few candidates first."""
        for partition in sorted(self._unplaced, key=lambda each: (len(self._wanting[each.topic]), each)):
            insort(self.partitions[self._least(partition.topic)], partition)

    def balance(self) -> None:
        """Move partitions until no member has two or more above another member that could own them."""
        moved = True
        while moved:
            moved = False
            for member in sorted(self.partitions, key=lambda each: -len(self.partitions[each])):
                topics = Counter(partition.topic for partition in self.partitions[member])
                for topic, count in topics.most_common():
                    receiver = self._least(topic)
                    surplus = (len(self.partitions[member]) - len(self.partitions[receiver])) // 2
                    for _ in range(min(surplus, count)):
                        moved |= self._move(member, self._least(topic), topic)

    def _least(self, topic: str) -> str:
        return min(self._wanting[topic], key=lambda member: (len(self.partitions[member]), member))

    def _move(self, giver: str, receiver: str, topic: str) -> bool:
        """Move a partition if that makes the two members more equal; returns whether it did."""
        if len(self.partitions[giver]) - len(self.partitions[receiver]) < 2:
            return False
        partition = next(each for each in reversed(self.partitions[giver]) if each.topic == topic)
        self.partitions[giver].remove(partition)
        insort(self.partitions[receiver], partition)
        return True


ASSIGNORS: dict[str, Assignor] = {
    "range": assign_range,
    "roundrobin": assign_round_robin,
    "cooperative-sticky": assign_cooperative_sticky,
}
COOPERATIVE = frozenset({"cooperative-sticky"})
"""Assignors whose members keep their partitions while they join."""


M = TypeVar("M", bound=Message)

_VERSION: Final = struct.Struct(">h")


def _decode(message_type: type[M], data: bytes) -> M | None:
    """Decode a message; None for empty data, which a member without partitions may get. Raises DecodeError."""
    if len(data) < _VERSION.size:
        return None
    version = min(_VERSION.unpack_from(data)[0], message_type.max_version)
    return message_type.decode_prefix(memoryview(data)[_VERSION.size :], version)[0]


def encode_subscription(
    topics: Iterable[str], owned: Iterable[TopicPartition] = (), generation: int = -1, rack: str | None = None
) -> bytes:
    """Encode a member's topics and the partitions that it owns since `generation`."""
    message = ConsumerProtocolSubscription(
        topics=sorted(topics),
        owned_partitions=[
            ConsumerProtocolSubscription.TopicPartition(topic=topic, partitions=partitions)
            for topic, partitions in by_topic(sorted(owned)).items()
        ],
        generation_id=generation,
        rack_id=rack,
    )
    return encode_versioned(message, message.max_version)


def decode_subscription(data: bytes, instance_id: str | None = None) -> Subscription:
    """Decode a subscription of any client. Raises DecodeError."""
    message = _decode(ConsumerProtocolSubscription, data)
    if message is None:
        return Subscription((), instance_id=instance_id)
    owned = tuple(
        TopicPartition(each.topic, partition) for each in message.owned_partitions for partition in each.partitions
    )
    return Subscription(tuple(message.topics), owned, message.generation_id, instance_id)


def encode_assignment(partitions: Iterable[TopicPartition]) -> bytes:
    """Encode the partitions assigned to a member."""
    message = ConsumerProtocolAssignment(
        assigned_partitions=[
            ConsumerProtocolAssignment.TopicPartition(topic=topic, partitions=each)
            for topic, each in by_topic(sorted(partitions)).items()
        ]
    )
    return encode_versioned(message, message.max_version)


def decode_assignment(data: bytes) -> list[TopicPartition]:
    """Decode an assignment of any client. Raises DecodeError."""
    message = _decode(ConsumerProtocolAssignment, data)
    if message is None:
        return []
    return [
        TopicPartition(each.topic, partition) for each in message.assigned_partitions for partition in each.partitions
    ]
