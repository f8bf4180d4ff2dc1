"""Large requests are split, handled share by share and answered as one."""

from __future__ import annotations

import tracemalloc

import pytest

from broker.network.registry import HandlerRegistry, RequestContext, api
from broker.network.shares import JoinedAnswers, Split, arrays_of
from broker.security.rights import EVERYBODY
from environment.slices import HASH_SHARDS, RepeatedKeys
from protocol.acl_types import AclOperation, AclPermissionType, PatternType, ResourceType
from protocol.api_keys import ApiKey
from protocol.config_resources import ConfigResourceType
from protocol.errors import ErrorCode
from protocol.messages import REQUEST_TYPES
from protocol.messages.configs import DescribeConfigsRequest, DescribeConfigsResponse
from protocol.messages.group_admin import DeleteGroupsRequest, DeleteGroupsResponse, DescribeGroupsRequest
from protocol.messages.group_offsets import OffsetFetchRequest, OffsetFetchResponse
from protocol.messages.offsets import ListOffsetsRequest, ListOffsetsResponse
from protocol.messages.produce import ProduceRequest, ProduceResponse
from protocol.messages.reassignments import ElectLeadersRequest
from protocol.messages.security import CreateAclsRequest, CreateAclsResponse
from protocol.messages.topics import CreatePartitionsRequest, CreateTopicsRequest, CreateTopicsResponse
from protocol.records.batch import Record, build_batch
from protocol.wire.schema import Request, fields_of
from protocol.wire.wire_types import ArrayOf
from tests.kit.in_process import InProcessBroker, play
from tests.kit.in_process import Wire as Client

Group = OffsetFetchRequest.OffsetFetchRequestGroup
Topic = OffsetFetchRequest.OffsetFetchRequestTopics


def shares_of(split: Split, request: Request, size: int) -> list[Request]:
    return [share for share in split.shares(request, size, lambda: False) if share is not None]


def offset_fetch(groups: dict[str, dict[str, list[int]] | None]) -> OffsetFetchRequest:
    return OffsetFetchRequest(
        require_stable=True,
        groups=[
            Group(
                group_id=group_id,
                topics=None
                if topics is None
                else [Topic(name=name, partition_indexes=list(indexes)) for name, indexes in topics.items()],
            )
            for group_id, topics in groups.items()
        ],
    )


def test_nested_arrays_are_cut_where_a_share_is_full() -> None:
    asked = offset_fetch({"g": {"a": [0, 1, 2], "b": []}, "all": None, "h": {"c": [0]}})
    shares = shares_of(Split("groups.topics.partition_indexes"), asked, 2)
    assert shares == [
        offset_fetch({"g": {"a": [0, 1]}}),
        offset_fetch({"g": {"a": [2], "b": []}}),
        offset_fetch({"all": None, "h": {"c": [0]}}),
    ]


def test_duplicates_are_looked_for_in_slices() -> None:
    count, size = 2000, 100
    asked = offset_fetch({"g": {"a": list(range(count))}})
    shares = Split("groups.topics.partition_indexes", ("partition_indexes",)).shares(asked, size, lambda: True)
    slices = next(number for number, share in enumerate(shares) if share is not None)
    assert slices == count + HASH_SHARDS + size - 1, "hashes are taken one by one, and compared shard by shard"


def test_looking_for_duplicates_among_a_million_leaves_no_object_for_each() -> None:
    """Small objects by the million leave free memory that malloc cannot return, once others live among them."""
    keys = RepeatedKeys()
    tracemalloc.start()
    try:
        for number in range(100_000):
            keys.add(number << 32)
        for _ in keys.find(lambda: False):
            pass
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2_000_000
    assert not keys.any
    assert 1 << 32 not in keys


def test_looking_for_duplicates_among_a_few_costs_little_memory() -> None:
    """Every Metadata request does, and most of them name one topic."""
    tracemalloc.start()
    try:
        keys = RepeatedKeys(3)
        for key in ("a", "b", "a"):
            keys.add(key)
        for _ in keys.find(lambda: True):
            pytest.fail("a few keys need no second slice")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 10_000
    assert "a" in keys
    assert "b" not in keys


def test_an_answer_that_was_cut_is_joined() -> None:
    result, topic = OffsetFetchResponse.OffsetFetchResponseGroup, OffsetFetchResponse.OffsetFetchResponseTopics
    partition = OffsetFetchResponse.OffsetFetchResponsePartitions

    def answer(throttle_time_ms: int, group_id: str, topics: dict[str, list[int]]) -> OffsetFetchResponse:
        found = [
            topic(
                name=name,
                partitions=[
                    partition(partition_index=index, committed_offset=1, metadata="", error_code=0) for index in indexes
                ],
            )
            for name, indexes in topics.items()
        ]
        groups = [result(group_id=group_id, topics=found, error_code=0)]
        return OffsetFetchResponse(throttle_time_ms=throttle_time_ms, groups=groups)

    joined = JoinedAnswers(Split("groups.topics.partition_indexes"), OffsetFetchResponse, 8)
    for part in (
        answer(3, "g", {"a": [0, 1]}),
        answer(7, "g", {"a": [2], "b": [5]}),
        answer(0, "g", {"b": [6]}),
        answer(0, "h", {"b": [6]}),
        answer(0, "h", {"b": [7], "c": [1]}),
        answer(0, "i", {}),
    ):
        joined.add(part)
    expected = answer(7, "g", {"a": [0, 1, 2], "b": [5, 6]})
    expected.groups += answer(0, "h", {"b": [6, 7], "c": [1]}).groups + answer(0, "i", {}).groups
    assert OffsetFetchResponse.decode(joined.response().to_bytes(8), 8) == expected


def test_a_joined_answer_is_encoded_as_it_grows() -> None:
    topic, partition = ListOffsetsResponse.ListOffsetsTopicResponse, ListOffsetsResponse.ListOffsetsPartitionResponse
    joined = JoinedAnswers(Split("topics.partitions"), ListOffsetsResponse, 5)
    tracemalloc.start()
    for start in range(0, 50_000, 100):
        found = [partition(partition_index=index, error_code=0) for index in range(start, start + 100)]
        joined.add(ListOffsetsResponse(topics=[topic(name="t", partitions=found)]))
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    encoded = joined.response().to_bytes(5)
    assert taken < 1.2 * len(encoded)  # ten times as much as objects


@pytest.mark.parametrize("count", range(2, 8))
def test_what_is_named_twice_comes_in_one_share(count: int) -> None:
    topic = CreatePartitionsRequest.CreatePartitionsTopic
    names = ["a", *["twice"] * (count - 1), "b", "c", "twice"]
    topics = [topic(name=name, count=2, assignments=None) for name in names]
    request = CreatePartitionsRequest(topics=topics, timeout_ms=1, validate_only=False)
    shares = [
        [each.name for each in share.topics]
        for share in shares_of(Split("topics", unique=("name",)), request, 3)
        if isinstance(share, CreatePartitionsRequest)
    ]
    assert sorted(name for share in shares for name in share) == sorted(names)
    assert shares[0] == ["a", "b", "c"]
    assert all(share.count("twice") != 1 for share in shares)


def test_every_array_is_split_or_whole_for_a_reason() -> None:
    class Forgetful:
        @api(ApiKey.DESCRIBE_GROUPS, versions=(0, 5), right=EVERYBODY)
        def describe_groups(self, context: RequestContext, request: DescribeGroupsRequest) -> None:
            """Does not declare its array for splitting."""

    with pytest.raises(ValueError, match="describe_groups says of an array of DESCRIBE_GROUPS neither"):
        HandlerRegistry([Forgetful()])


@pytest.mark.parametrize("request_type", REQUEST_TYPES.values())
def test_arrays_are_those_of_the_declaration(request_type: type[Request]) -> None:
    declared = [spec.name for spec in fields_of(request_type) if isinstance(spec.type, ArrayOf)]
    assert arrays_of(request_type) == declared


async def _create(wire: Client, names: list[str], *, count: int = 1) -> CreateTopicsResponse:
    topic = CreateTopicsRequest.CreatableTopic
    topics = [
        topic(name=name, num_partitions=count, replication_factor=1, assignments=[], configs=[]) for name in names
    ]
    answer = await wire.ask(CreateTopicsRequest(topics=topics, timeout_ms=60_000), 7)
    assert isinstance(answer, CreateTopicsResponse)
    return answer


def test_a_topic_that_is_named_twice_far_apart_is_not_created() -> None:
    async def scenario(_broker: InProcessBroker, wire: Client) -> None:
        names = ["twice", *(f"!{number}" for number in range(300)), "twice"]
        codes = [(each.name, each.error_code) for each in (await _create(wire, names)).topics]
        assert codes[:300] == [(name, ErrorCode.INVALID_TOPIC_EXCEPTION) for name in names[1:-1]]
        assert codes[300:] == [("twice", ErrorCode.INVALID_REQUEST)] * 2

    play(scenario)


def test_a_partition_that_is_listed_twice_far_apart_is_refused() -> None:
    async def scenario(_broker: InProcessBroker, wire: Client) -> None:
        await _create(wire, ["t"], count=2)
        indexes = [1, *range(2, 2000), 0, 1]
        partition = ListOffsetsRequest.ListOffsetsPartition
        topics = [
            ListOffsetsRequest.ListOffsetsTopic(
                name="t", partitions=[partition(partition_index=index, timestamp=-1) for index in indexes]
            )
        ]
        answer = await wire.ask(ListOffsetsRequest(replica_id=-1, topics=topics), 5)
        assert isinstance(answer, ListOffsetsResponse)
        codes = {(each.partition_index, each.error_code) for topic in answer.topics for each in topic.partitions}
        assert {(0, ErrorCode.NONE), (1, ErrorCode.INVALID_REQUEST)} <= codes
        assert sum(len(topic.partitions) for topic in answer.topics) == len(indexes)

    play(scenario)


AUTHORIZED = {
    "authorizer_class_name": "kafka.security.authorizer.AclAuthorizer",
    "allow_everyone_if_no_acl_found": "true",
}


async def _deny(wire: Client, topic: str) -> None:
    creation = CreateAclsRequest.AclCreation(
        resource_type=ResourceType.TOPIC,
        resource_name=topic,
        resource_pattern_type=PatternType.LITERAL,
        principal="User:*",
        host="*",
        operation=AclOperation.ALL,
        permission_type=AclPermissionType.DENY,
    )
    answer = await wire.ask(CreateAclsRequest(creations=[creation]), 1)
    assert isinstance(answer, CreateAclsResponse)
    assert [each.error_code for each in answer.results] == [ErrorCode.NONE]


@pytest.mark.parametrize("count", [2, 1500])
@pytest.mark.parametrize("acks", [0, 1])
def test_a_produce_that_is_refused_in_part(count: int, acks: int) -> None:
    """The guard checks the shares of a large request; the handler gets the remaining elements together."""

    async def scenario(_broker: InProcessBroker, wire: Client) -> None:
        await _create(wire, ["allowed", "denied"])
        await _deny(wire, "denied")
        batch = build_batch([Record(0, 1_700_000_000_000, None, b"value")])
        topics = [
            ProduceRequest.TopicProduceData(
                name=name,
                partition_data=[
                    ProduceRequest.PartitionProduceData(index=index, records=batch) for index in range(count)
                ],
            )
            for name in ("denied", "allowed")
        ]
        request = ProduceRequest(acks=acks, timeout_ms=1000, topic_data=topics)
        if acks:
            answer = await wire.ask(request, 7)
            assert isinstance(answer, ProduceResponse)
            unknown, refused = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.TOPIC_AUTHORIZATION_FAILED
            assert [
                (topic.name, each.index, each.error_code)
                for topic in answer.responses
                for each in topic.partition_responses
            ] == [
                *(("allowed", index, unknown if index else ErrorCode.NONE) for index in range(count)),
                *(("denied", index, refused) for index in range(count)),
            ]
        else:
            with pytest.raises(ConnectionError):
                await wire.ask(request, 7)

    play(scenario, **AUTHORIZED)


@pytest.mark.parametrize("count", [10, 1500])
def test_descriptions_of_configurations_that_are_refused_in_part(count: int) -> None:
    async def scenario(_broker: InProcessBroker, wire: Client) -> None:
        await _create(wire, ["allowed", "denied"])
        await _deny(wire, "denied")
        resources = [
            DescribeConfigsRequest.DescribeConfigsResource(
                resource_type=ConfigResourceType.TOPIC, resource_name=name, configuration_keys=["retention.ms"]
            )
            for name in ["denied", "allowed"] * count
        ]
        answer = await wire.ask(DescribeConfigsRequest(resources=resources), 2)
        assert isinstance(answer, DescribeConfigsResponse)
        assert [(each.resource_name, each.error_code, len(each.configs)) for each in answer.results] == [
            *[("allowed", ErrorCode.NONE, 1)] * count,
            *[("denied", ErrorCode.TOPIC_AUTHORIZATION_FAILED, 0)] * count,
        ]

    play(scenario, **AUTHORIZED)


def test_a_refusal_of_a_share_is_the_answer_and_no_other_share_follows() -> None:
    async def scenario(_broker: InProcessBroker, wire: Client) -> None:
        topics = [ElectLeadersRequest.TopicPartitions(topic="t", partitions=list(range(5000)))]
        answer = await wire.ask(ElectLeadersRequest(election_type=9, topic_partitions=topics, timeout_ms=1000), 2)
        assert answer.error_code == ErrorCode.UNKNOWN_SERVER_ERROR  # type: ignore[attr-defined]
        (result,) = answer.replica_election_results  # type: ignore[attr-defined]
        assert len(result.partition_result) == 100

    play(scenario)


def test_a_group_that_is_named_twice_is_answered_once() -> None:
    async def scenario(_broker: InProcessBroker, wire: Client) -> None:
        request = DeleteGroupsRequest(groups_names=[f"g{number % 1200}" for number in range(1300)])
        answer = await wire.ask(request, 2)
        assert isinstance(answer, DeleteGroupsResponse)
        assert len({each.group_id for each in answer.results}) == len(answer.results) == 1200

    play(scenario)
