"""CreateTopics, DeleteTopics and CreatePartitions."""

from __future__ import annotations

from typing import Any

from protocol.errors import ErrorCode
from protocol.messages.fetch import FetchRequest
from protocol.messages.topics import CreatePartitionsRequest, CreateTopicsRequest, DeleteTopicsRequest
from protocol.uuids import ZERO_UUID
from tests.kit.environment import uuid_of
from tests.parity.scenarios.fetch import fetch, filled
from tests.parity.subject import Subject, batch, produce_request, scenario

CreatableTopic = CreateTopicsRequest.CreatableTopic


def new(
    name: str,
    partitions: int = 1,
    replicas: int = 1,
    configs: dict[str, str | None] | None = None,
    assignments: dict[int, list[int]] | None = None,
) -> CreatableTopic:
    """A topic to be created."""
    return CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=replicas,
        assignments=[
            CreateTopicsRequest.CreatableReplicaAssignment(partition_index=index, broker_ids=brokers)
            for index, brokers in (assignments or {}).items()
        ],
        configs=[
            CreateTopicsRequest.CreatableTopicConfig(name=key, value=value) for key, value in (configs or {}).items()
        ],
    )


def create(b: Subject, *topics: CreatableTopic, version: int = 7, validate_only: bool = False) -> None:
    """Create topics."""
    b.ask(CreateTopicsRequest(topics=list(topics), timeout_ms=30_000, validate_only=validate_only), version)


@scenario
def create_in_every_version(b: Subject) -> None:
    for version in range(8):
        create(b, new(b.name(f"v{version}"), 2), version=version)


@scenario
def create_with_configs(b: Subject) -> None:
    create(b, new(b.name(), configs={"retention.ms": "1000", "cleanup.policy": "compact"}))


@scenario
def create_with_defaults(b: Subject) -> None:
    create(b, new(b.name("a"), -1, -1))
    create(b, new(b.name("b"), -1, -1), version=4)
    create(b, new(b.name("c"), -1, -1), version=3)


@scenario
def create_existing(b: Subject) -> None:
    topic = b.topic()
    for version in (0, 1, 7):
        create(b, new(topic), version=version)
    create(b, new(topic), validate_only=True)


@scenario
def create_twice_in_one_request(b: Subject) -> None:
    create(b, new(b.name()), new(b.name()), new(b.name("other")))


@scenario
def create_with_bad_names(b: Subject) -> None:
    for name in ("", ".", "..", "a/b", "x" * 250, "a b", "ä", "a\0b"):
        create(b, new(name))


@scenario
def create_with_colliding_names(b: Subject) -> None:
    create(b, new(b.prefix + ".collides.x"))
    create(b, new(b.prefix + "_collides_x"))
    create(b, new(b.prefix + ".collides_x"), validate_only=True)


@scenario
def create_with_the_longest_name(b: Subject) -> None:
    create(b, new((b.prefix + "-").ljust(249, "x")), validate_only=True)


@scenario
def create_internal_names(b: Subject) -> None:
    create(b, new("__cluster_metadata"))
    b.coordinator(b.name("g"))
    create(b, new("__consumer_offsets"))


@scenario
def create_with_bad_counts(b: Subject) -> None:
    for partitions, replicas in ((0, 1), (-2, 1), (1, 0), (1, -2), (1, 2), (0, 0), (1, 32767)):
        create(b, new(b.name(), partitions, replicas))


@scenario
def create_with_bad_configs(b: Subject) -> None:
    for configs in (
        {"no.such.key": "1"},
        {"retention.ms": "x"},
        {"retention.ms": None},
        {"retention.ms": "-5"},
        {"cleanup.policy": "shred"},
        {"segment.bytes": "1"},
        {"compression.type": "none"},
        {"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "5"},
        {"remote.storage.enable": "true"},
        {"message.format.version": "9"},
    ):
        create(b, new(b.name(), configs=configs), validate_only=True)
        create(b, new(b.name(), configs=configs), version=1)


@scenario
def create_with_assignments(b: Subject) -> None:
    create(b, new(b.name("a"), -1, -1, assignments={0: [0], 1: [0]}))
    create(b, new(b.name("b"), -1, -1, assignments={1: [0], 0: [0]}))


@scenario
def create_with_bad_assignments(b: Subject) -> None:
    for assignments in ({0: [0, 0]}, {0: []}, {1: [0]}, {0: [5]}, {0: [-1]}, {0: [0], 2: [0]}, {0: [0], 1: [0, 1]}):
        create(b, new(b.name(), -1, -1, assignments=assignments), validate_only=True)
    create(b, new(b.name("a"), 1, 1, assignments={0: [0]}))
    create(b, new(b.name("b"), -1, 1, assignments={0: [0]}))


@scenario
def create_with_a_partition_assigned_twice(b: Subject) -> None:
    topic = new(b.name(), -1, -1)
    topic.assignments = [
        CreateTopicsRequest.CreatableReplicaAssignment(partition_index=0, broker_ids=[0]) for _ in range(2)
    ]
    create(b, topic)


@scenario
def create_validating_only(b: Subject) -> None:
    create(b, new(b.name(), 3), validate_only=True)
    b.note("exists", b.metadata(b.name()).topics[0].error_code)


@scenario
def create_some_of_several(b: Subject) -> None:
    create(b, new(b.name("good")), new("a/b"), new(b.name("bad"), 0))
    b.await_leaders(b.name("good"))


@scenario
def create_nothing(b: Subject) -> None:
    create(b)


@scenario
def create_without_waiting(b: Subject) -> None:
    topic = b.name()
    b.ask(CreateTopicsRequest(topics=[new(topic)], timeout_ms=0), 7)
    b.await_leaders(topic)


# -- DeleteTopics ------------------------------------------------------------------------------------------------------


def delete(b: Subject, *names: str, version: int = 5) -> None:
    """Delete topics by name."""
    if version < 6:
        b.ask(DeleteTopicsRequest(topic_names=list(names), timeout_ms=30_000), version)
    else:
        states = [DeleteTopicsRequest.DeleteTopicState(name=name, topic_id=ZERO_UUID) for name in names]
        b.ask(DeleteTopicsRequest(topics=states, timeout_ms=30_000), version)


@scenario
def delete_in_every_version(b: Subject) -> None:
    for version in range(7):
        delete(b, b.topic(f"v{version}"), version=version)


@scenario
def delete_by_id(b: Subject) -> None:
    topic = b.topic()
    state = DeleteTopicsRequest.DeleteTopicState(name=None, topic_id=b.topic_id(topic))
    b.ask(DeleteTopicsRequest(topics=[state], timeout_ms=30_000), 6)
    b.note("exists", b.metadata(topic).topics[0].error_code)


@scenario
def delete_missing(b: Subject) -> None:
    for version in (1, 5, 6):
        delete(b, b.name("missing"), version=version)
    state = DeleteTopicsRequest.DeleteTopicState(name=None, topic_id=uuid_of(0x77))
    b.ask(DeleteTopicsRequest(topics=[state], timeout_ms=30_000), 6)


@scenario
def delete_by_id_and_name(b: Subject) -> None:
    topic = b.topic()
    state = DeleteTopicsRequest.DeleteTopicState(name=topic, topic_id=b.topic_id(topic))
    b.ask(DeleteTopicsRequest(topics=[state], timeout_ms=30_000), 6)


@scenario
def delete_twice_in_one_request(b: Subject) -> None:
    topic = b.topic()
    delete(b, topic, topic)


@scenario
def delete_by_id_and_by_name_in_one_request(b: Subject) -> None:
    topic = b.topic()
    states = [
        DeleteTopicsRequest.DeleteTopicState(name=topic, topic_id=ZERO_UUID),
        DeleteTopicsRequest.DeleteTopicState(name=None, topic_id=b.topic_id(topic)),
    ]
    b.ask(DeleteTopicsRequest(topics=states, timeout_ms=30_000), 6)


@scenario
def delete_some_of_several(b: Subject) -> None:
    delete(b, b.topic("a"), b.name("missing"), b.topic("b"))


@scenario
def delete_nothing(b: Subject) -> None:
    delete(b)
    delete(b, version=6)


@scenario
def delete_bad_names(b: Subject) -> None:
    for name in ("", "a/b", ".."):
        delete(b, name)


@scenario
def after_delete(b: Subject) -> None:
    topic = filled(b)
    topic_id = b.topic_id(topic)
    delete(b, topic)
    b.until(lambda: b.metadata(topic).topics[0].error_code == 3)
    b.ask(produce_request(topic, batch(b"a")), 11)
    b.ask(fetch(b, topic, topic_id=topic_id), 17)
    b.ask(fetch(b, topic, version=12), 12)
    b.topic()
    b.ask(fetch(b, topic), 17)
    b.ask(fetch(b, topic, topic_id=topic_id), 17)


@scenario
def fetch_waits_and_the_topic_is_deleted(b: Subject) -> None:
    error = ErrorCode.UNKNOWN_TOPIC_ID
    # again, if the broker read the other connection first: then the fetch did not wait
    while error == ErrorCode.UNKNOWN_TOPIC_ID:
        topic = filled(b)
        with b.another() as consumer:
            consumer.send(fetch(b, topic, 6, max_wait_ms=20_000, min_bytes=1), 17)
            deleted = b.quietly(DeleteTopicsRequest(topic_names=[topic], timeout_ms=30_000), 5)
            woken: Any = consumer.receive(FetchRequest, 17)
        error = woken.responses[0].partitions[0].error_code
    b.note("DeleteTopics v5", deleted)
    b.note("woken", woken)


# -- CreatePartitions --------------------------------------------------------------------------------------------------


def grow(
    b: Subject,
    topic: str,
    count: int,
    assignments: list[list[int]] | None = None,
    *,
    version: int = 3,
    validate_only: bool = False,
) -> None:
    """Request a total of `count` partitions."""
    wanted = CreatePartitionsRequest.CreatePartitionsTopic(
        name=topic,
        count=count,
        assignments=None
        if assignments is None
        else [CreatePartitionsRequest.CreatePartitionsAssignment(broker_ids=brokers) for brokers in assignments],
    )
    b.ask(CreatePartitionsRequest(topics=[wanted], timeout_ms=30_000, validate_only=validate_only), version)


@scenario
def grow_in_every_version(b: Subject) -> None:
    topic = b.topic()
    for version in range(4):
        grow(b, topic, version + 2, version=version)
        b.await_leaders(topic, version + 2)


@scenario
def grow_to_the_same_or_less(b: Subject) -> None:
    topic = b.topic(partitions=3)
    for count in (3, 2, 0, -1):
        grow(b, topic, count)


@scenario
def grow_a_missing_topic(b: Subject) -> None:
    grow(b, b.name("missing"), 3)
    grow(b, "", 3)
    grow(b, "a/b", 3)


@scenario
def grow_with_assignments(b: Subject) -> None:
    topic = b.topic()
    grow(b, topic, 2, [[0]])
    b.await_leaders(topic, 2)


@scenario
def grow_with_bad_assignments(b: Subject) -> None:
    topic = b.topic()
    for count, assignments in ((2, []), (2, [[0], [0]]), (2, [[5]]), (2, [[]]), (2, [[0, 0]]), (3, [[0], [0, 1]])):
        grow(b, topic, count, assignments)


@scenario
def grow_validating_only(b: Subject) -> None:
    topic = b.topic()
    grow(b, topic, 5, validate_only=True)
    b.note("partitions", len(b.metadata(topic).topics[0].partitions))


@scenario
def grow_twice_in_one_request(b: Subject) -> None:
    topic = b.topic()
    wanted = [
        CreatePartitionsRequest.CreatePartitionsTopic(name=topic, count=count, assignments=None) for count in (2, 3)
    ]
    b.ask(CreatePartitionsRequest(topics=wanted, timeout_ms=30_000, validate_only=False), 3)


@scenario
def grow_nothing(b: Subject) -> None:
    b.ask(CreatePartitionsRequest(topics=[], timeout_ms=30_000, validate_only=False), 3)


@scenario
def old_records_stay_when_a_topic_grows(b: Subject) -> None:
    topic = filled(b)
    grow(b, topic, 2)
    b.await_leaders(topic, 2)
    b.ask(fetch(b, topic), 17)
    b.ask(fetch(b, topic, partition=1), 17)
