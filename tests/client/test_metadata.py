"""Brokers whose metadata is outdated."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from client.metadata import Metadata, TrackedMetadata
from protocol.messages.metadata import MetadataResponse
from protocol.topic_partition import TopicPartition
from protocol.uuids import Uuid
from tests.kit.environment import uuid_of

TOPIC_ID = uuid_of(1)


def answer(*leaders: tuple[int, int], topic_id: Uuid = TOPIC_ID) -> Metadata:
    """(leader, leader epoch) of each partition of topic t."""
    partitions = [
        MetadataResponse.MetadataResponsePartition(
            error_code=0,
            partition_index=index,
            leader_id=leader,
            leader_epoch=epoch,
            replica_nodes=[0, 1],
            isr_nodes=[0, 1],
            offline_replicas=[],
        )
        for index, (leader, epoch) in enumerate(leaders)
    ]
    topic = MetadataResponse.MetadataResponseTopic(error_code=0, name="t", topic_id=topic_id, partitions=partitions)
    return Metadata.of(MetadataResponse(brokers=[], controller_id=0, topics=[topic]))


def leaders(metadata: Metadata) -> list[tuple[int, int]]:
    return [(each.leader, each.leader_epoch) for each in metadata.topics["t"].partitions.values()]


def test_a_leader_of_an_older_epoch_is_not_followed() -> None:
    known = Metadata().update(answer((0, 1), (0, 1)))
    assert leaders(known) == [(0, 1), (0, 1)]
    assert leaders(known.update(answer((1, 0), (1, 2)))) == [(0, 1), (1, 2)]


def test_a_partition_may_lose_its_leader() -> None:
    assert leaders(answer((0, 1)).update(answer((-1, 2)))) == [(-1, 2)]


def test_a_topic_that_was_created_again_begins_with_its_own_epochs() -> None:
    assert leaders(answer((0, 5)).update(answer((1, 0), topic_id=uuid_of(2)))) == [(1, 0)]


def test_brokers_that_tell_no_epochs_are_believed() -> None:
    assert leaders(answer((0, 5)).update(answer((1, -1)))) == [(1, -1)]


def test_a_leader_that_has_refused_is_left_alone_for_a_while() -> None:
    """Otherwise a reader would alternate between it and metadata requests, as fast as both are answered. Another
    leader, or epoch, is asked at once.
    """

    async def scenario() -> None:
        client: Any = SimpleNamespace(settings=SimpleNamespace(retry_backoff_ms=30, metadata_max_age_ms=300_000))
        metadata, partition = TrackedMetadata(client, allow_auto_topic_creation=False), TopicPartition("t", 0)
        metadata.track(["t"])
        metadata.current = answer((0, 1))
        assert metadata.leader_of(partition) is not None
        metadata.refused(partition)
        assert metadata.leader_of(partition) is None
        assert metadata.needs_refresh
        await asyncio.sleep(0.04)
        assert metadata.leader_of(partition) is not None
        metadata.refused(partition)
        metadata.current = answer((0, 2))
        assert metadata.leader_of(partition) is not None
        metadata.refused(partition)
        metadata.current = answer((1, 3))
        assert metadata.leader_of(partition) is not None

    asyncio.run(scenario())
