"""The throttles of a reassignment (KIP-73): rate limits on brokers, and the throttled replicas of topics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from client import admin
from client.admin import ConfigChange
from client.kafka_client import KafkaClient
from client.replica_admin import Reassignment
from protocol.config_resources import ConfigResourceType
from protocol.topic_partition import TopicPartition

LEADER_RATE = "leader.replication.throttled.rate"
FOLLOWER_RATE = "follower.replication.throttled.rate"
LOG_DIRS_RATE = "replica.alter.log.dirs.io.max.bytes.per.second"
LEADER_REPLICAS = "leader.replication.throttled.replicas"
FOLLOWER_REPLICAS = "follower.replication.throttled.replicas"


class Move(NamedTuple):
    """The source and target brokers of a partition."""

    sources: tuple[int, ...]
    destinations: tuple[int, ...]


def moves(
    under_way: Mapping[TopicPartition, Reassignment],
    proposed: Mapping[TopicPartition, Sequence[int]],
    current: Mapping[TopicPartition, Sequence[int]],
) -> dict[TopicPartition, Move]:
    """All moves once `proposed` is added to those `under_way`. A partition that is already moving is copied from its
    original replicas, not from its current ones.
    """
    found = {
        name: Move(tuple(each for each in moving.replicas if each not in moving.adding), moving.adding)
        for name, moving in under_way.items()
    }
    for name, replicas in proposed.items():
        sources = found[name].sources if name in found else tuple(current[name])
        found[name] = Move(sources, tuple(each for each in replicas if each not in sources))
    return found


async def throttle_brokers(client: KafkaClient, planned: Mapping[TopicPartition, Move], rate: int) -> None:
    """Limit copying between brokers to `rate` bytes per second, and print that. Raises ApiError."""
    for topic in dict.fromkeys(name.topic for name in planned):
        own = {name.partition: move for name, move in planned.items() if name.topic == topic}
        changes = [
            ConfigChange(LEADER_REPLICAS, _listed((number, move.sources) for number, move in own.items())),
            ConfigChange(FOLLOWER_REPLICAS, _listed((number, move.destinations) for number, move in own.items())),
        ]
        await admin.alter_configs(client, ConfigResourceType.TOPIC, topic, changes)
    brokers = {each for move in planned.values() for each in (*move.sources, *move.destinations)}
    await _set_rates(client, brokers, (LEADER_RATE, FOLLOWER_RATE), rate)
    print(f"The inter-broker throttle limit was set to {rate} B/s")


def _listed(replicas: Iterable[tuple[int, Iterable[int]]]) -> str:
    """`partition:broker,...`, sorted as text, as Kafka's tool writes it."""
    return ",".join(sorted({f"{partition}:{broker}" for partition, brokers in replicas for broker in brokers}))


async def throttle_directories(client: KafkaClient, brokers: Iterable[int], rate: int) -> None:
    """Limit these brokers' copying between log directories, and print that. Raises ApiError."""
    await _set_rates(client, brokers, (LOG_DIRS_RATE,), rate)
    print(f"The replica-alter-dir throttle limit was set to {rate} B/s")


async def _set_rates(client: KafkaClient, brokers: Iterable[int], names: Sequence[str], rate: int | None) -> None:
    changes = [ConfigChange(name, None if rate is None else str(rate)) for name in names]
    for broker in sorted(set(brokers)):
        await admin.alter_configs(client, ConfigResourceType.BROKER, str(broker), changes)


async def clear_throttles(client: KafkaClient, brokers: Iterable[int], topics: Sequence[str]) -> None:
    """Remove all limits of these brokers and the topics' lists of replicas, and print that. Raises ApiError."""
    cleared = sorted(set(brokers))
    print(f"Clearing broker-level throttles on broker{_plural(cleared)} {','.join(map(str, cleared))}")
    await _set_rates(client, cleared, (LEADER_RATE, FOLLOWER_RATE, LOG_DIRS_RATE), None)
    print(f"Clearing topic-level throttles on topic{_plural(topics)} {','.join(topics)}")
    for topic in topics:
        changes = [ConfigChange(LEADER_REPLICAS, None), ConfigChange(FOLLOWER_REPLICAS, None)]
        await admin.alter_configs(client, ConfigResourceType.TOPIC, topic, changes)


def _plural(items: Sequence[object]) -> str:
    return "" if len(items) == 1 else "s"
