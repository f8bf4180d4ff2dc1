"""OffsetCommit, OffsetFetch, OffsetDelete."""

from __future__ import annotations

from typing import Any

from protocol.messages.group_offsets import OffsetCommitRequest, OffsetDeleteRequest, OffsetFetchRequest
from tests.parity.scenarios.groups import leave, stable_group, subscription
from tests.parity.subject import Subject, scenario


def commit(
    b: Subject,
    group: str,
    topic: str,
    *offsets: int,
    generation: int = -1,
    member_id: str = "",
    version: int = 9,
    metadata: str | None = "note",
    epoch: int = -1,
    **options: Any,
) -> None:
    """Commit `offsets` for the topic's partitions 0, 1 ..."""
    partitions = [
        OffsetCommitRequest.OffsetCommitRequestPartition(
            partition_index=index, committed_offset=offset, committed_leader_epoch=epoch, committed_metadata=metadata
        )
        for index, offset in enumerate(offsets)
    ]
    topics = [OffsetCommitRequest.OffsetCommitRequestTopic(name=topic, partitions=partitions)]
    b.ask(
        OffsetCommitRequest(
            group_id=group,
            generation_id_or_member_epoch=generation,
            member_id=member_id,
            topics=topics,
            **options,
        ),
        version,
    )


def fetch_offsets(
    b: Subject, group: str, *topics: tuple[str, list[int]], version: int = 9, everything: bool = False, **options: Any
) -> None:
    """Fetch committed offsets of partitions, or of everything."""
    if version < 8:
        old = [
            OffsetFetchRequest.OffsetFetchRequestTopic(name=topic, partition_indexes=partitions)
            for topic, partitions in topics
        ]
        b.ask(OffsetFetchRequest(group_id=group, topics=None if everything else old, **options), version)
        return
    wanted = [
        OffsetFetchRequest.OffsetFetchRequestTopics(name=topic, partition_indexes=partitions)
        for topic, partitions in topics
    ]
    asked = OffsetFetchRequest.OffsetFetchRequestGroup(group_id=group, topics=None if everything else wanted)
    b.ask(OffsetFetchRequest(groups=[asked], **options), version)


@scenario
def commit_and_fetch(b: Subject) -> None:
    group, topic = b.coordinator(b.name("g")), b.topic(partitions=2)
    commit(b, group, topic, 5, 7, epoch=0)
    fetch_offsets(b, group, (topic, [0, 1, 2]))
    fetch_offsets(b, group, everything=True)
    commit(b, group, topic, 3)
    fetch_offsets(b, group, (topic, [0]))


@scenario
def commit_in_every_version(b: Subject) -> None:
    group, topic = b.coordinator(b.name("g")), b.topic()
    for version in range(1, 10):
        commit(b, group, topic, version, version=version)
        fetch_offsets(b, group, (topic, [0]))


@scenario
def fetch_in_every_version(b: Subject) -> None:
    group, topic = b.coordinator(b.name("g")), b.topic(partitions=2)
    commit(b, group, topic, 5, epoch=0)
    for version in range(1, 10):
        fetch_offsets(b, group, (topic, [0, 1]), version=version)
    for version in range(2, 10):
        fetch_offsets(b, group, everything=True, version=version)


@scenario
def fetch_of_nothing(b: Subject) -> None:
    group = b.coordinator(b.name("g"))
    fetch_offsets(b, group)
    fetch_offsets(b, group, everything=True)
    fetch_offsets(b, group, version=5)


@scenario
def fetch_of_unknown_groups_and_topics(b: Subject) -> None:
    group = b.coordinator(b.name("g"))
    fetch_offsets(b, group, (b.name("missing"), [0, 3]))
    fetch_offsets(b, "", (b.name("missing"), [0]))
    fetch_offsets(b, "", (b.name("missing"), [0]), version=5)


@scenario
def fetch_of_several_groups(b: Subject) -> None:
    topic = b.topic()
    groups = [b.coordinator(b.name(suffix)) for suffix in ("g", "h")]
    for number, group in enumerate(groups):
        commit(b, group, topic, 10 + number)
    asked = [
        OffsetFetchRequest.OffsetFetchRequestGroup(
            group_id=group,
            topics=[OffsetFetchRequest.OffsetFetchRequestTopics(name=topic, partition_indexes=[0])],
        )
        for group in groups
    ]
    b.ask(OffsetFetchRequest(groups=asked), 8)


@scenario
def fetch_with_stable_offsets_only(b: Subject) -> None:
    group, topic = b.coordinator(b.name("g")), b.topic()
    commit(b, group, topic, 5)
    fetch_offsets(b, group, (topic, [0]), require_stable=True)
    fetch_offsets(b, group, (topic, [0]), require_stable=True, version=7)


@scenario
def commit_for_missing_partitions(b: Subject) -> None:
    group = b.coordinator(b.name("g"))
    commit(b, group, b.name("missing"), 1)
    commit(b, group, b.topic(partitions=1), 1, 2, 3)
    fetch_offsets(b, group, everything=True)


@scenario
def commit_metadata(b: Subject) -> None:
    group, topic = b.coordinator(b.name("g")), b.topic()
    for metadata in (None, "", "x" * 4096, "x" * 4097, "ä" * 4096, "ä" * 4097):
        commit(b, group, topic, 1, metadata=metadata)
        fetch_offsets(b, group, (topic, [0]))


@scenario
def commit_strange_offsets(b: Subject) -> None:
    group, topic = b.coordinator(b.name("g")), b.topic()
    for offset in (-1, -5, 2**62):
        commit(b, group, topic, offset)
        fetch_offsets(b, group, (topic, [0]))


@scenario
def commit_without_a_group(b: Subject) -> None:
    b.coordinator(b.name("g"))
    topic = b.topic()
    commit(b, "", topic, 1)
    commit(b, "", topic, 1, version=2)


@scenario
def commit_with_a_generation_to_a_group_that_is_not_there(b: Subject) -> None:
    group, topic = b.coordinator(b.name("g")), b.topic()
    commit(b, group, topic, 1, generation=5, member_id="nobody")
    commit(b, group, topic, 1, generation=-1, member_id="nobody")


@scenario
def commit_as_a_member(b: Subject) -> None:
    topic = b.topic()
    group, member_id, generation = stable_group(b)
    commit(b, group, topic, 1, generation=generation, member_id=member_id)
    commit(b, group, topic, 2, generation=generation + 1, member_id=member_id)
    commit(b, group, topic, 3, generation=generation, member_id="nobody")
    commit(b, group, topic, 4)
    commit(b, group, topic, 5, generation=generation, member_id=member_id, group_instance_id="nobody")
    fetch_offsets(b, group, (topic, [0]))


@scenario
def commit_after_the_group_emptied(b: Subject) -> None:
    topic = b.topic()
    group, member_id, generation = stable_group(b)
    commit(b, group, topic, 1, generation=generation, member_id=member_id)
    leave(b, group, (member_id, None))
    commit(b, group, topic, 2, generation=generation, member_id=member_id)
    commit(b, group, topic, 3)
    fetch_offsets(b, group, (topic, [0]))


@scenario
def commit_nothing(b: Subject) -> None:
    group = b.coordinator(b.name("g"))
    b.ask(OffsetCommitRequest(group_id=group, topics=[]), 9)


@scenario
def offsets_of_a_deleted_topic(b: Subject) -> None:
    from protocol.messages.topics import DeleteTopicsRequest

    group, topic = b.coordinator(b.name("g")), b.topic()
    commit(b, group, topic, 5)
    b.quietly(DeleteTopicsRequest(topic_names=[topic], timeout_ms=10_000), 5)
    b.until(lambda: b.metadata(topic).topics[0].error_code == 3)

    def forgotten() -> bool:
        request = OffsetFetchRequest(groups=[OffsetFetchRequest.OffsetFetchRequestGroup(group_id=group, topics=None)])
        return not b.quietly(request, 9).groups[0].topics

    b.until(forgotten)
    fetch_offsets(b, group, (topic, [0]))


def delete_offsets(b: Subject, group: str, *topics: tuple[str, list[int]]) -> None:
    """OffsetDelete."""
    wanted = [
        OffsetDeleteRequest.OffsetDeleteRequestTopic(
            name=topic,
            partitions=[OffsetDeleteRequest.OffsetDeleteRequestPartition(partition_index=each) for each in partitions],
        )
        for topic, partitions in topics
    ]
    b.ask(OffsetDeleteRequest(group_id=group, topics=wanted), 0)


@scenario
def delete(b: Subject) -> None:
    group, topic = b.coordinator(b.name("g")), b.topic(partitions=2)
    commit(b, group, topic, 5, 6)
    delete_offsets(b, group, (topic, [0]))
    fetch_offsets(b, group, everything=True)
    delete_offsets(b, group, (topic, [0, 1, 7]), (b.name("missing"), [0]))


@scenario
def delete_from_unknown_groups(b: Subject) -> None:
    b.coordinator(b.name("g"))
    topic = b.topic()
    delete_offsets(b, b.name("none"), (topic, [0]))
    delete_offsets(b, "", (topic, [0]))
    delete_offsets(b, b.name("none"))


@scenario
def delete_what_a_member_reads(b: Subject) -> None:
    topic, other = b.topic(), b.topic("other")
    group, member_id, generation = stable_group(b, protocols=(("range", subscription(topic)),))
    for each in (topic, other):
        commit(b, group, each, 5, generation=generation, member_id=member_id)
    delete_offsets(b, group, (topic, [0]), (other, [0]))


@scenario
def delete_from_a_group_of_another_kind(b: Subject) -> None:
    topic = b.topic()
    group, _, _ = stable_group(b, protocol_type="connect")
    delete_offsets(b, group, (topic, [0]))
