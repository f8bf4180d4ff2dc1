"""CreateTopics and DeleteTopics: codes and messages as in the answers of Apache Kafka 3.9.1."""

from __future__ import annotations

import pytest

from broker.controller.controller_term import ControllerSettings
from protocol.errors import ErrorCode
from protocol.messages.topics import CreateTopicsRequest, CreateTopicsResponse
from protocol.uuids import ZERO_UUID
from tests.broker.handlers.topic_broker import Broker, placed, topic
from tests.kit.controller.controller_fixtures import SETTINGS
from tests.kit.coordination_fixtures import in_loop
from tests.kit.environment import uuid_of

BOTH_SET = (
    "Both numPartitions or replicationFactor and replicasAssignments were set. Both cannot be used at the same time."
)
NOT_CONSECUTIVE = "partitions should be a consecutive 0-based integer sequence"

REFUSED: list[tuple[CreateTopicsRequest.CreatableTopic, ErrorCode, str]] = [
    (topic("there"), ErrorCode.TOPIC_ALREADY_EXISTS, "Topic 'there' already exists."),
    (topic("there", 0, 9), ErrorCode.TOPIC_ALREADY_EXISTS, "Topic 'there' already exists."),
    (topic("n", 0), ErrorCode.INVALID_PARTITIONS, "Number of partitions must be larger than 0."),
    (topic("n", -2), ErrorCode.INVALID_PARTITIONS, "Number of partitions must be larger than 0."),
    (topic("n", 10_001), ErrorCode.POLICY_VIOLATION, "Excessively large number of partitions per request."),
    (topic("n", 2**31 - 1), ErrorCode.POLICY_VIOLATION, "Excessively large number of partitions per request."),
    (topic("n", 1, 0), ErrorCode.INVALID_REPLICATION_FACTOR, "Replication factor must be larger than 0."),
    (topic("n", 1, -2), ErrorCode.INVALID_REPLICATION_FACTOR, "Replication factor must be larger than 0."),
    (
        topic("n", 1, 2),
        ErrorCode.INVALID_REPLICATION_FACTOR,
        "Replication factor: 2 larger than available brokers: 1.",
    ),
    (
        topic(""),
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        "Topic name is invalid: the empty string is not allowed",
    ),
    (
        topic("a/b"),
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        "Topic name is invalid: 'a/b' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'",
    ),
    (
        topic("a/b", configs={"x": "y"}),
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        "Topic name is invalid: 'a/b' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'",
    ),
    (topic("a/b", 0), ErrorCode.INVALID_PARTITIONS, "Number of partitions must be larger than 0."),
    (
        topic("col_x"),
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        "Topic 'col_x' collides with existing topics: col.x",
    ),
    (
        topic("n", configs={"segment.bytes": None, "retention.ms": None}),
        ErrorCode.INVALID_CONFIG,
        "Null value not supported for topic configs: segment.bytes,retention.ms",
    ),
    (topic("n", configs={"nope": "abc"}), ErrorCode.INVALID_CONFIG, "Unknown topic config name: nope"),
    (topic("n", 1, 1, [(0, [0])]), ErrorCode.INVALID_REQUEST, BOTH_SET),
    (topic("n", 1, -1, [(0, [0])]), ErrorCode.INVALID_REQUEST, BOTH_SET),
    (placed("n", (0, [0]), (2, [0])), ErrorCode.INVALID_REPLICA_ASSIGNMENT, NOT_CONSECUTIVE),
    (placed("n", (-1, [0]), (0, [0])), ErrorCode.INVALID_REPLICA_ASSIGNMENT, NOT_CONSECUTIVE),
    (placed("n", (1, [0])), ErrorCode.INVALID_REPLICA_ASSIGNMENT, NOT_CONSECUTIVE),
    (
        placed("n", (0, [0, 0])),
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        "Duplicate replica assignment found: HashMap(0 -> ArrayBuffer(0, 0))",
    ),
    (
        placed("n", (0, [0]), (1, [0, 1])),
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        "All partitions should have the same number of replicas",
    ),
    (
        placed("n", (0, [0]), (1, [])),
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        "All partitions should have the same number of replicas",
    ),
    (
        topic("__cluster_metadata"),
        ErrorCode.INVALID_REQUEST,
        "Creation of internal topic __cluster_metadata is prohibited.",
    ),
]


@pytest.mark.parametrize("validate", [False, True])
@pytest.mark.parametrize(("asked", "error_code", "message"), REFUSED)
@in_loop
async def test_what_may_not_be_created(
    asked: CreateTopicsRequest.CreatableTopic, error_code: ErrorCode, message: str, validate: bool
) -> None:
    broker = Broker()
    await broker.start()
    await broker.create(topic("there"), topic("col.x"))
    before = broker.image
    response = await broker.create_response(asked, validate=validate)
    (result,) = response.topics
    assert (result.error_code, result.error_message) == (error_code, message)
    assert (result.topic_id, result.num_partitions, result.replication_factor, result.configs) == (
        ZERO_UUID,
        -1,
        -1,
        [],
    )
    assert broker.image is before


@in_loop
async def test_a_created_topic_is_described() -> None:
    broker = Broker()
    await broker.start()
    (result,) = (await broker.create_response(topic("orders", 3, configs={"retention.ms": "1000"}))).topics
    assert result.topic_id == broker.image.topics["orders"].topic_id
    assert (result.error_code, result.error_message) == (ErrorCode.NONE, None)
    assert (result.num_partitions, result.replication_factor) == (3, 1)
    assert result.configs == [
        CreateTopicsResponse.CreatableTopicConfigs(
            name="retention.ms", value="1000", read_only=False, config_source=1, is_sensitive=False
        )
    ]


@pytest.mark.parametrize("version", range(8))
@in_loop
async def test_every_version_creates_and_deletes(version: int) -> None:
    broker = Broker()
    await broker.start()
    assert await broker.create(topic("t", -1, -1), version=version) == [(ErrorCode.NONE, None)]
    assert len(broker.image.topics["t"].partitions) == SETTINGS.num_partitions
    if version <= 6:
        (deleted,) = (await broker.delete("t", version=version)).responses
        assert deleted.error_code == ErrorCode.NONE
        assert broker.image.topics == {}


@in_loop
async def test_topics_named_twice_and_topics_that_collide_in_one_request() -> None:
    broker = Broker()
    await broker.start()
    response = await broker.create_response(
        topic("twice"), topic("fine"), topic("twice", 2), topic("c.c"), topic("c_c")
    )
    assert [(each.name, each.error_code, each.error_message) for each in response.topics] == [
        ("twice", ErrorCode.INVALID_REQUEST, "Found multiple entries for this topic."),
        ("twice", ErrorCode.INVALID_REQUEST, "Found multiple entries for this topic."),
        ("fine", ErrorCode.NONE, None),
        ("c.c", ErrorCode.NONE, None),
        ("c_c", ErrorCode.INVALID_TOPIC_EXCEPTION, "Topic 'c_c' collides with existing topics: c.c"),
    ]
    assert set(broker.image.topics) == {"fine", "c.c"}


@in_loop
async def test_validation_creates_nothing_but_describes() -> None:
    broker = Broker()
    await broker.start()
    (result,) = (await broker.create_response(topic("orders", 3), validate=True)).topics
    assert (result.error_code, result.topic_id, result.num_partitions) == (ErrorCode.NONE, ZERO_UUID, 3)
    assert broker.image.topics == {}


@pytest.mark.parametrize("timeout_ms", [0, -1])
@in_loop
async def test_no_time_to_wait_still_creates(timeout_ms: int) -> None:
    broker = Broker()
    await broker.start()
    response = await broker.create_response(topic("t"), topic("a/b"), timeout_ms=timeout_ms)
    timed_out, refused = response.topics
    assert (timed_out.error_code, timed_out.error_message) == (ErrorCode.REQUEST_TIMED_OUT, None)
    assert timed_out.topic_id == broker.image.topics["t"].topic_id
    assert (timed_out.num_partitions, timed_out.replication_factor, timed_out.configs) == (-1, -1, [])
    assert refused.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


@in_loop
async def test_a_topic_on_a_broker_that_is_not_there_has_no_leader_in_time() -> None:
    broker = Broker()
    await broker.start()
    assert await broker.create(placed("t", (0, [7]))) == [(ErrorCode.REQUEST_TIMED_OUT, None)]
    assert broker.image.topics["t"].partitions[0].leader == -1


@in_loop
async def test_empty_replica_lists_are_refused() -> None:
    """Kafka 3.9 on ZooKeeper creates a topic that can never have a leader; we answer like KRaft."""
    broker = Broker()
    await broker.start()
    assert await broker.create(placed("t", (0, []))) == [
        (ErrorCode.INVALID_REPLICA_ASSIGNMENT, "The manual partition assignment includes an empty replica list.")
    ]


@in_loop
async def test_no_topics_are_no_error() -> None:
    broker = Broker()
    await broker.start()
    assert await broker.create() == []
    assert (await broker.delete()).responses == []
    assert await broker.grow() == []


@in_loop
async def test_deletion_by_name_and_id() -> None:
    broker = Broker()
    await broker.start()
    await broker.create(topic("a"), topic("b"), topic("c"))
    id_of_b = broker.image.topics["b"].topic_id
    id_of_c = broker.image.topics["c"].topic_id
    response = await broker.delete("a", id_of_b, "missing", uuid_of(5), ("c", id_of_c), (None, ZERO_UUID), "")
    assert [(each.name, each.topic_id, each.error_code, each.error_message) for each in response.responses] == [
        ("a", ZERO_UUID, ErrorCode.NONE, None),
        ("b", id_of_b, ErrorCode.NONE, None),
        ("missing", ZERO_UUID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None),
        (None, uuid_of(5), ErrorCode.UNKNOWN_TOPIC_ID, None),
        ("c", id_of_c, ErrorCode.INVALID_REQUEST, None),
        (None, ZERO_UUID, ErrorCode.TOPIC_AUTHORIZATION_FAILED, None),
        ("", ZERO_UUID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None),
    ]
    assert set(broker.image.topics) == {"c"}
    again = await broker.delete(id_of_b)
    assert (again.responses[0].name, again.responses[0].error_code) == (None, ErrorCode.UNKNOWN_TOPIC_ID)


@in_loop
async def test_a_topic_may_be_named_twice_in_one_deletion() -> None:
    broker = Broker()
    await broker.start()
    await broker.create(topic("a"))
    response = await broker.delete("a", broker.image.topics["a"].topic_id, "a")
    assert [(each.name, each.error_code) for each in response.responses] == [("a", ErrorCode.NONE)] * 3


@in_loop
async def test_deletion_without_time_to_wait() -> None:
    broker = Broker()
    await broker.start()
    await broker.create(topic("a"))
    response = await broker.delete("a", "missing", timeout_ms=0)
    assert [each.error_code for each in response.responses] == [
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert broker.image.topics == {}


@pytest.mark.parametrize("version", range(7))
@in_loop
async def test_deletion_switched_off(version: int) -> None:
    broker = Broker(settings=ControllerSettings(delete_topics=False))
    await broker.start()
    await broker.create(topic("a"))
    response = await broker.delete("a", "missing", version=version)
    expected = ErrorCode.TOPIC_DELETION_DISABLED if version >= 3 else ErrorCode.INVALID_REQUEST
    assert [(each.name, each.error_code, each.error_message) for each in response.responses] == [
        ("a", expected, None),
        ("missing", expected, None),
    ]
    assert set(broker.image.topics) == {"a"}
