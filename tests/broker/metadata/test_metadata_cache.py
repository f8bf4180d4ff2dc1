"""The metadata that a controller sends, also in parts."""

from __future__ import annotations

import asyncio

from broker.metadata.metadata_cache import MetadataCache
from cluster.controller.commands import CommandFence, TopicStates, UpdateMetadata
from cluster.metadata_image import PartitionImage, TopicImage
from protocol.uuids import Uuid
from tests.kit.environment import uuid_of
from tests.kit.waiting import turns

ID, LATER_ID = uuid_of(11), uuid_of(12)


def partition(number: int, leader: int = 1) -> PartitionImage:
    return PartitionImage(number, leader, 5, (1, 2), (1, 2), 3, 7)


def told(cache: MetadataCache, *numbers: int, topic_id: Uuid = ID, leader: int = 1) -> TopicImage:
    """The topic after the cache received some of its partitions."""
    states = TopicStates("t", topic_id, tuple(partition(number, leader) for number in numbers))
    cache.update_metadata(UpdateMetadata(1, 7, -1, topics=(states,)))
    return cache.image.topics["t"]


def test_a_partition_that_was_not_told_of_yet_has_no_leader() -> None:
    """Apache Kafka's controller omits partitions whose state it does not know."""
    cache = MetadataCache(CommandFence())
    assert [each.leader for each in told(cache, 3, 1).partitions] == [-1, 1, -1, 1]
    assert [each.partition for each in cache.image.topics["t"].partitions] == [0, 1, 2, 3]
    assert [each.leader for each in told(cache, 0, 5, leader=2).partitions] == [2, 1, -1, 1, -1, 2]


def test_a_topic_that_was_created_again_has_nothing_of_the_old_one() -> None:
    cache = MetadataCache(CommandFence())
    told(cache, 0, 1, 2)
    again = told(cache, 0, topic_id=LATER_ID)
    assert again == TopicImage("t", LATER_ID, (partition(0),))
    assert cache.image.topic_names == {LATER_ID: "t"}


def test_a_deleted_topic_is_gone() -> None:
    cache = MetadataCache(CommandFence())
    told(cache, 0, 1)
    gone = TopicStates("t", ID, (partition(0, -2), partition(1, -2)))
    cache.update_metadata(UpdateMetadata(1, 7, -1, deleted_topics=(gone, gone.replace(topic="never-known"))))
    assert cache.image.topics == {}


def test_what_a_full_command_does_not_name_is_gone() -> None:
    """A broker may miss a deletion: its session had expired, or the controller resigned before it sent one."""
    cache = MetadataCache(CommandFence())
    told(cache, 0, 1)
    other = TopicStates("u", LATER_ID, (partition(0),))
    cache.update_metadata(UpdateMetadata(1, 7, -1, topics=(other,)))
    assert sorted(cache.image.topics) == ["t", "u"]
    cache.update_metadata(UpdateMetadata(1, 7, -1, topics=(other,), is_full=True))
    assert sorted(cache.image.topics) == ["u"]


def update(*, is_full: bool = False, marks_full: bool = True) -> UpdateMetadata:
    """An UpdateMetadata without topics."""
    return UpdateMetadata(1, 7, -1, is_full=is_full, marks_full=marks_full)


def test_who_asks_a_broker_that_has_just_started_waits_until_it_knows_all_topics() -> None:
    """A new controller announces itself, and perhaps some topics, before it sends all of them."""
    cache = MetadataCache(CommandFence())

    async def wait() -> None:
        asked = asyncio.ensure_future(cache.wait_for_topics(60))
        cache.update_metadata(update())
        told(cache, 0)
        await turns()
        assert not asked.done()
        cache.update_metadata(update(is_full=True))
        await asked
        assert cache.has_all_topics
        await cache.wait_for_topics(0)

    asyncio.run(wait())


def test_waiting_for_topics_has_an_end() -> None:
    """The metadata is still unknown after that: the controller must send all topics, even if the list is empty."""
    cache = MetadataCache(CommandFence())

    async def wait() -> None:
        for _ in range(2):
            await cache.wait_for_topics(0.001)
            assert not cache.has_all_topics
            cache.update_metadata(update())

    asyncio.run(wait())


def test_a_controller_of_apache_kafka_tells_of_all_topics_at_once() -> None:
    cache = MetadataCache(CommandFence())
    states = TopicStates("t", ID, (partition(0),))
    cache.update_metadata(UpdateMetadata(1, 7, -1, topics=(states,), marks_full=False))
    assert cache.has_all_topics


def test_a_controller_of_apache_kafka_that_is_silent_for_long_has_no_topics() -> None:
    cache = MetadataCache(CommandFence())

    async def wait() -> None:
        asked_before = asyncio.ensure_future(cache.wait_for_topics(0.001))
        await turns(1)
        cache.update_metadata(update(marks_full=False))
        await asked_before
        assert not cache.has_all_topics
        await cache.wait_for_topics(0.001)
        assert cache.has_all_topics

    asyncio.run(wait())
