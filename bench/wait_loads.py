"""The loads for measuring how long one client waits for another (`bench.waits`).

Every load is first prepared (topics created, requests encoded), then runs while a probe sends requests.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Final

from bench.brokers import Broker
from bench.scenario import Context
from bench.starts import led
from protocol.config_resources import ConfigResourceType
from protocol.messages.configs import DescribeConfigsRequest, IncrementalAlterConfigsRequest
from protocol.messages.coordinators import FindCoordinatorRequest, FindCoordinatorResponse
from protocol.messages.fetch import FetchRequest
from protocol.messages.group_offsets import OffsetCommitRequest
from protocol.messages.groups import JoinGroupRequest, JoinGroupResponse, SyncGroupRequest, SyncGroupResponse
from protocol.messages.metadata import MetadataRequest
from protocol.messages.produce import ProduceRequest
from protocol.messages.topics import CreateTopicsRequest, CreateTopicsResponse, DeleteTopicsRequest
from protocol.records.batch import Record, build_batch
from protocol.wire.schema import Request
from tests.kit import heavy_requests as heavy
from tests.kit.wire_client import ConnectionClosed, WireClient
from tests.kit.wire_requests import framed, request_bytes

PATIENCE_S: Final = 300
NODE: Final = "0"
MEMBER_JOINS_BY_ID: Final = 4
"""From this version on, JoinGroup makes a new member rejoin with its id."""
JOIN_SETTINGS: Final = {"group.initial.rebalance.delay.ms": "5000"}
"""The broker waits this long for more members of a new group, so that many join at once."""
ANSWER_S: Final = 30.0
"""Time limit for the response to a heavy request: Apache Kafka takes minutes for 500,000 unknown names."""
HELD_S: Final = 3.0
"""How long a client holds half a frame."""

Load = Callable[[], int | None]
"""Runs a load; returns the bytes of request and response if it is a single request."""
Prepare = Callable[[Context, Broker, str, ExitStack], Load]


def few(context: Context, count: int) -> int:
    """`count`, scaled."""
    return max(10, int(count * context.scale))


def connect(broker: Broker, stack: ExitStack, patience_s: float = PATIENCE_S) -> WireClient:
    """A connection that closes at the end of the sample."""
    client = WireClient("127.0.0.1", broker.port, "load", patience_s)
    stack.callback(client.close)
    return client


def encoded(request: Request, version: int) -> bytes:
    """A request with its header and length."""
    return framed(request_bytes(request, version, client_id="load"))


def exchange(client: WireClient, request: Request, version: int) -> Load:
    """Sends the request and waits for its response, without decoding it."""
    data = encoded(request, version)
    return lambda: ask(client, data)


def ask(client: WireClient, data: bytes) -> int:
    """Send a request and wait for the response, a hang-up or a timeout; returns the bytes of both."""
    try:
        client.send_bytes(data)
        return len(data) + len(client.receive_frame())
    except (ConnectionClosed, TimeoutError):
        return len(data)


def make_topics(client: WireClient, names: Sequence[str], partitions: int = 1) -> None:
    """Create topics, and return when each partition has a leader. Raises RuntimeError."""
    wanted = CreateTopicsRequest.CreatableTopic
    topics = [
        wanted(name=name, num_partitions=partitions, replication_factor=1, assignments=[], configs=[]) for name in names
    ]
    answer = client.ask(CreateTopicsRequest(topics=topics, timeout_ms=PATIENCE_S * 1000), 4)
    if not isinstance(answer, CreateTopicsResponse) or any(topic.error_code for topic in answer.topics):
        raise RuntimeError(f"could not create {len(names)} topics")
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        if sum(led(client, name) for name in names) == len(names) * partitions:
            return
        time.sleep(0.1)
    raise RuntimeError(f"{len(names)} topics have no leaders after {PATIENCE_S} s")


# -- the loads ---------------------------------------------------------------------------------------------------------


def describe_brokers(context: Context, broker: Broker, _topic: str, stack: ExitStack) -> Load:
    """DescribeConfigs that names the broker 2,000 times."""
    resource = DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=int(ConfigResourceType.BROKER), resource_name=NODE, configuration_keys=None
    )
    request = DescribeConfigsRequest(resources=[resource] * few(context, 2_000), include_synonyms=True)
    return exchange(connect(broker, stack), request, 2)


def describe_topics(context: Context, broker: Broker, topic: str, stack: ExitStack) -> Load:
    """DescribeConfigs of 10,000 topics: of 500, each named 20 times."""
    client = connect(broker, stack)
    names = [f"{topic}-{number}" for number in range(few(context, 500))]
    make_topics(client, names)
    resources = [
        DescribeConfigsRequest.DescribeConfigsResource(
            resource_type=int(ConfigResourceType.TOPIC), resource_name=name, configuration_keys=None
        )
        for name in names * 20
    ]
    return exchange(client, DescribeConfigsRequest(resources=resources, include_synonyms=True), 2)


def describe_broker_ids(context: Context, broker: Broker, _topic: str, stack: ExitStack) -> Load:
    """DescribeConfigs of 2,000 broker ids, all but one refused."""
    resources = [
        DescribeConfigsRequest.DescribeConfigsResource(
            resource_type=int(ConfigResourceType.BROKER), resource_name=str(number), configuration_keys=None
        )
        for number in range(few(context, 2_000))
    ]
    return exchange(connect(broker, stack), DescribeConfigsRequest(resources=resources, include_synonyms=True), 2)


def describe_distinct_topics(context: Context, broker: Broker, topic: str, stack: ExitStack) -> Load:
    """DescribeConfigs of 10,000 topics, each named once."""
    client = connect(broker, stack)
    names = [f"{topic}-{number}" for number in range(few(context, 10_000))]
    for start in range(0, len(names), 500):
        make_topics(client, names[start : start + 500])
    resources = [
        DescribeConfigsRequest.DescribeConfigsResource(
            resource_type=int(ConfigResourceType.TOPIC), resource_name=name, configuration_keys=None
        )
        for name in names
    ]
    return exchange(client, DescribeConfigsRequest(resources=resources, include_synonyms=True), 2)


def wake_fetches(context: Context, broker: Broker, topic: str, stack: ExitStack) -> Load:
    """Ten fetches of 5,000 partitions each wait for more than is available; 100 produces wake them."""
    count = few(context, 5_000)
    make_topics(connect(broker, stack), [topic], count)
    partitions = [
        FetchRequest.FetchPartition(partition=number, fetch_offset=0, partition_max_bytes=1 << 20)
        for number in range(count)
    ]
    fetch = FetchRequest(
        max_wait_ms=PATIENCE_S * 1000,
        min_bytes=1 << 30,
        topics=[FetchRequest.FetchTopic(topic=topic, partitions=partitions)],
    )
    for _ in range(10):
        connect(broker, stack).send_bytes(encoded(fetch, 11))
    producer = connect(broker, stack)
    produces = [encoded(produce(topic, [number % count]), 7) for number in range(100)]

    def load() -> None:
        for data in produces:
            producer.send_bytes(data)
            producer.receive_frame()

    return load


def produce(topic: str, partitions: Sequence[int]) -> ProduceRequest:
    """A request with one record for each of the partitions."""
    batch = build_batch([Record(0, time.time_ns() // 1_000_000, None, b"x" * 100)])
    data = [ProduceRequest.PartitionProduceData(index=number, records=batch) for number in partitions]
    return ProduceRequest(
        acks=1,
        timeout_ms=PATIENCE_S * 1000,
        topic_data=[ProduceRequest.TopicProduceData(name=topic, partition_data=data)],
    )


def produce_to_all(context: Context, broker: Broker, topic: str, stack: ExitStack) -> Load:
    """A batch to each of 5,000 partitions in one request."""
    count = few(context, 5_000)
    make_topics(connect(broker, stack), [topic], count)
    return exchange(connect(broker, stack), produce(topic, range(count)), 7)


def fetch_from_all(context: Context, broker: Broker, topic: str, stack: ExitStack) -> Load:
    """A fetch of 5,000 partitions with a record in each."""
    count = few(context, 5_000)
    client = connect(broker, stack)
    make_topics(client, [topic], count)
    exchange(client, produce(topic, range(count)), 7)()
    partitions = [
        FetchRequest.FetchPartition(partition=number, fetch_offset=0, partition_max_bytes=1 << 20)
        for number in range(count)
    ]
    request = FetchRequest(
        max_wait_ms=0, min_bytes=1, topics=[FetchRequest.FetchTopic(topic=topic, partitions=partitions)]
    )
    return exchange(client, request, 11)


def commit_offsets(context: Context, broker: Broker, topic: str, stack: ExitStack) -> Load:
    """OffsetCommit of 10,000 partitions."""
    count = few(context, 10_000)
    client = connect(broker, stack)
    make_topics(client, [topic], count)
    await_coordinator(broker, topic, stack)
    asked = OffsetCommitRequest.OffsetCommitRequestTopic
    partitions = [
        OffsetCommitRequest.OffsetCommitRequestPartition(
            partition_index=number, committed_offset=number, committed_metadata=""
        )
        for number in range(count)
    ]
    request = OffsetCommitRequest(
        group_id=topic,
        generation_id_or_member_epoch=-1,
        member_id="",
        topics=[asked(name=topic, partitions=partitions)],
    )
    return exchange(client, request, 7)


def create_large_topic(context: Context, broker: Broker, topic: str, stack: ExitStack) -> Load:
    """CreateTopics of a topic with 5,000 partitions."""
    wanted = CreateTopicsRequest.CreatableTopic(
        name=topic, num_partitions=few(context, 5_000), replication_factor=1, assignments=[], configs=[]
    )
    return exchange(connect(broker, stack), CreateTopicsRequest(topics=[wanted], timeout_ms=PATIENCE_S * 1000), 4)


def delete_large_topic(context: Context, broker: Broker, topic: str, stack: ExitStack) -> Load:
    """DeleteTopics of a topic with 5,000 partitions."""
    client = connect(broker, stack)
    make_topics(client, [topic], few(context, 5_000))
    return exchange(client, DeleteTopicsRequest(topic_names=[topic], timeout_ms=PATIENCE_S * 1000), 4)


def alter_configs(context: Context, broker: Broker, topic: str, stack: ExitStack) -> Load:
    """IncrementalAlterConfigs of 500 topics."""
    client = connect(broker, stack)
    names = [f"{topic}-{number}" for number in range(few(context, 500))]
    make_topics(client, names)
    change = IncrementalAlterConfigsRequest.AlterableConfig(name="retention.ms", config_operation=0, value="123456789")
    resources = [
        IncrementalAlterConfigsRequest.AlterConfigsResource(
            resource_type=int(ConfigResourceType.TOPIC), resource_name=name, configs=[change]
        )
        for name in names
    ]
    return exchange(client, IncrementalAlterConfigsRequest(resources=resources, validate_only=False), 0)


def create_topics(context: Context, broker: Broker, topic: str, stack: ExitStack) -> Load:
    """CreateTopics of 500 topics."""
    client = connect(broker, stack)
    wanted = CreateTopicsRequest.CreatableTopic
    topics = [
        wanted(name=f"{topic}-{number}", num_partitions=1, replication_factor=1, assignments=[], configs=[])
        for number in range(few(context, 500))
    ]
    return exchange(client, CreateTopicsRequest(topics=topics, timeout_ms=PATIENCE_S * 1000), 4)


def large_group(context: Context, broker: Broker, topic: str, stack: ExitStack) -> Load:
    """2,500 members join a group and get a partition each."""
    members = [connect(broker, stack) for _ in range(few(context, 2_500))]
    context.load.run("first", broker.address, topic)
    version = MEMBER_JOINS_BY_ID - 1
    protocol = JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=bytes(100))
    join = encoded(
        JoinGroupRequest(
            group_id=topic,
            session_timeout_ms=30_000,
            rebalance_timeout_ms=PATIENCE_S * 1000,
            member_id="",
            protocol_type="consumer",
            protocols=[protocol],
        ),
        version,
    )
    await_coordinator(broker, topic, stack)

    def load() -> None:
        for member in members:
            member.send_bytes(join)
        joined = [member.receive(JoinGroupRequest, version) for member in members]
        # Send the leader's request last: all others wait for it.
        for member, answer in sorted(zip(members, joined, strict=True), key=lambda each: bool(leads(each[1]))):
            member.send(sync(topic, answer), 2)
        for member in members:
            answer = member.receive(SyncGroupRequest, 2)
            if not isinstance(answer, SyncGroupResponse) or answer.error_code:
                raise RuntimeError(f"a member got no assignment: {answer}")

    return load


def leads(answer: object) -> Sequence[JoinGroupResponse.JoinGroupResponseMember]:
    """The members in the leader's response; raises RuntimeError for an error."""
    if not isinstance(answer, JoinGroupResponse) or answer.error_code:
        raise RuntimeError(f"a member could not join: {answer}")
    return answer.members


def sync(group: str, answer: object) -> SyncGroupRequest:
    """Build the SyncGroup request that follows a JoinGroup response: the leader sends all assignments."""
    assignments = [
        SyncGroupRequest.SyncGroupRequestAssignment(member_id=member.member_id, assignment=bytes(50))
        for member in leads(answer)
    ]
    if not isinstance(answer, JoinGroupResponse):
        raise TypeError("not an answer to JoinGroup")
    return SyncGroupRequest(
        group_id=group,
        generation_id=answer.generation_id,
        member_id=answer.member_id,
        assignments=assignments,
    )


def await_coordinator(broker: Broker, key: str, stack: ExitStack, *, of_transactions: bool = False) -> None:
    """Wait until the group or transactional id is usable: the coordinator's log may have to be created first."""
    client = connect(broker, stack)
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        answer = client.ask(FindCoordinatorRequest(key=key, key_type=int(of_transactions)), 1)
        if isinstance(answer, FindCoordinatorResponse) and not answer.error_code:
            time.sleep(1)  # it may still load
            return
        time.sleep(0.1)
    raise RuntimeError("no coordinator")


def pipelined_metadata(context: Context, broker: Broker, topic: str, stack: ExitStack) -> Load:
    """8,000 requests for the metadata of 1,000 partitions; their client reads nothing and leaves after a second."""
    make_topics(connect(broker, stack), [topic], few(context, 1_000))
    wanted = MetadataRequest.MetadataRequestTopic(name=topic)
    data = encoded(MetadataRequest(topics=[wanted], allow_auto_topic_creation=False), 8) * few(context, 8_000)

    def load() -> None:
        with socket.create_connection(("127.0.0.1", broker.port)) as client:
            client.settimeout(1)
            began = time.monotonic()
            with contextlib.suppress(TimeoutError):
                client.sendall(data)
            time.sleep(max(1 - (time.monotonic() - began), 0))
        broker.cpu_s()  # returns when the remaining work is done

    return load


def request(make: Callable[[int], bytes], count: int, *, clients: int = 1, in_a_group: bool = False) -> Prepare:
    """One of `heavy_requests`, sent by `clients` at once; `in_a_group`: to the coordinator of its group."""

    def prepare(context: Context, broker: Broker, _topic: str, stack: ExitStack) -> Load:
        data = make(few(context, count))
        if in_a_group:
            await_coordinator(broker, heavy.GROUP, stack)
        connections = [connect(broker, stack, ANSWER_S) for _ in range(clients)]
        executor = stack.enter_context(ThreadPoolExecutor(clients))
        return lambda: sum(executor.map(lambda client: ask(client, data), connections))

    return prepare


def half_frames(count: int) -> Prepare:
    """Connections that send 80 MB of a 100 MB frame at once, and then wait for three seconds."""

    def prepare(context: Context, broker: Broker, _topic: str, stack: ExitStack) -> Load:
        data = heavy.half_frame(few(context, 100_000_000))
        executor = stack.enter_context(ThreadPoolExecutor(count))

        def load() -> None:
            with ExitStack() as connections:
                clients = [open_socket(broker, connections) for _ in range(count)]
                began = time.monotonic()
                deque(executor.map(lambda client: send_what_is_taken(client, data), clients))
                time.sleep(max(HELD_S - (time.monotonic() - began), 0))

        return load

    return prepare


def open_socket(broker: Broker, stack: ExitStack) -> socket.socket:
    """A connection that stays open for `HELD_S`."""
    return stack.enter_context(socket.create_connection(("127.0.0.1", broker.port), HELD_S))


def send_what_is_taken(client: socket.socket, data: bytes) -> None:
    """Send until the broker hangs up or stops reading."""
    with contextlib.suppress(OSError):
        client.sendall(data)


def hang_ups(context: Context, broker: Broker, topic: str, stack: ExitStack) -> Load:
    """Three times: ten half frames that end, while one client asks for the metadata of 60,000 names."""
    once = half_frames(10)(context, broker, topic, stack)
    data = heavy.metadata_of_unknown(few(context, 60_000))
    client = connect(broker, stack, ANSWER_S)
    executor = stack.enter_context(ThreadPoolExecutor(1))

    def load() -> None:
        for _ in range(3):
            asking = executor.submit(ask, client, data)
            once()
            asking.result()

    return load
