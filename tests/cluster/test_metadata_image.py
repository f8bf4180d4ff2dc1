"""The image: lookups, replacements, sharing."""

from __future__ import annotations

import pytest

from cluster.metadata_image import MetadataImage, PartitionImage, TopicImage
from protocol.config_resources import ConfigResourceType
from protocol.topic_partition import TopicPartition
from tests.kit.environment import uuid_of


def topic(name: str, number: int, partitions: int = 2) -> TopicImage:
    return TopicImage(
        name,
        uuid_of(number),
        tuple(PartitionImage(each, 0, 0, (0,), (0,), 0, 1) for each in range(partitions)),
    )


def test_topics_by_name_and_id() -> None:
    image = MetadataImage().with_topics([topic("a", 1), topic("b", 2)])
    assert image.topic_names[uuid_of(2)] == "b"
    assert uuid_of(3) not in image.topic_names
    assert image.partition(TopicPartition("a", 1)) is image.topics["a"].partitions[1]
    assert image.partition(TopicPartition("a", -1)) is None
    assert image.partition(TopicPartition("c", 0)) is None
    assert (image.leader_of(TopicPartition("a", 0)), image.leader_of(TopicPartition("c", 0))) == (0, -1)


def test_an_image_is_not_changed_by_its_successors() -> None:
    first = MetadataImage().with_topics([topic("a", 1), topic("b", 2)])
    second = first.with_topics([topic("c", 3)], removed=["a"])
    assert set(first.topics) == {"a", "b"}
    assert set(second.topics) == {"b", "c"}
    assert second.topics["b"] is first.topics["b"]
    assert uuid_of(1) not in second.topic_names
    assert first.configs is second.configs


def test_a_topic_that_goes_takes_its_configuration_along() -> None:
    image = MetadataImage().with_topics([topic("a", 1)])
    image = image.with_configs(
        {(ConfigResourceType.TOPIC, "a"): {"x": "1"}, (ConfigResourceType.BROKER, "a"): {"y": "2"}}
    )
    assert image.with_topics(removed=["a"]).configs == {(ConfigResourceType.BROKER, "a"): {"y": "2"}}


def test_a_topic_created_again_in_one_step_has_its_new_id_only() -> None:
    image = MetadataImage().with_topics([topic("a", 1)]).with_topics([topic("a", 2)], removed=["a"])
    assert uuid_of(1) not in image.topic_names
    assert image.topic_names[uuid_of(2)] == "a"


def test_configs_are_found_by_the_numbers_of_the_wire() -> None:
    image = MetadataImage().with_configs({(ConfigResourceType.BROKER, ""): {"a": "1"}})
    assert image.config(4, "") == {"a": "1"}
    assert image.config(2, "") == {}
    assert image.with_configs({(ConfigResourceType.BROKER, ""): {}}).configs == {}
    assert image.with_configs({(ConfigResourceType.BROKER, ""): {"a": "1"}, (2, "t"): {}}) is image


def test_partitions_are_replaced_and_appended_but_leave_no_gap() -> None:
    before = topic("a", 1, 3)
    changed = PartitionImage(1, 5, 1, (5,), (5,), 1, 1)
    appended = PartitionImage(3, 5, 1, (5,), (5,), 1, 1)
    after = before.with_partitions([appended, changed])
    assert after.partitions == (before.partitions[0], changed, before.partitions[2], appended)
    with pytest.raises(ValueError, match="gap"):
        before.with_partitions([PartitionImage(4, 5, 1, (5,), (5,), 1, 1)])
