"""Throttle times of clients that exceed a quota, and the answers they get meanwhile."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import Any

from protocol.messages.api_versions import ApiVersionsRequest
from protocol.messages.configs import DescribeConfigsRequest
from protocol.messages.coordinators import FindCoordinatorRequest
from protocol.messages.group_admin import DescribeGroupsRequest, ListGroupsRequest
from protocol.messages.group_offsets import OffsetFetchRequest
from protocol.messages.groups import HeartbeatRequest
from protocol.messages.metadata import DescribeClusterRequest, MetadataRequest
from protocol.messages.offsets import ListOffsetsRequest
from protocol.messages.topics import CreatePartitionsRequest
from protocol.wire.schema import Request
from tests.kit.wire_client import ConnectionClosed, WireClient
from tests.kit.wire_requests import fetch
from tests.parity.limited_clients import (
    CHANGED,
    READ,
    TIME,
    USER,
    WINDOW_S,
    WRITTEN,
    Parts,
    alter_request,
    change,
    new_topics,
    old_topics,
    quotas,
    throttle_ms,
    written,
)
from tests.parity.subject import Subject, scenario, scenario_for_each


@scenario
def of_a_first_request(b: Subject) -> None:
    """The time is exact: only the request itself counts, over the whole window."""
    topic = b.topic()
    with quotas(b, ({"client-id": None}, {WRITTEN: 1000.0})):
        for size in (1000, 9_000, 10_000, 11_111, 50_000, 900_000):
            b.note(f"{size} bytes", throttle_ms(b, b.name(f"{size:06}"), written(topic, size)))


@scenario_for_each({"none": 0, "one": 1, "few": 77, "some": 500, "many": 2**31, "most": 1e18})
def of_limits(b: Subject, limit: float) -> None:
    topic, name = b.topic(), b.name("client")
    with quotas(b, ({"client-id": name}, {WRITTEN: limit})):
        b.note("throttle time", throttle_ms(b, name, written(topic, 5000)))


@scenario
def of_a_first_fetch(b: Subject) -> None:
    topic = b.topic()
    for _ in range(5):
        b.produce(topic, b"x" * 20_000)
    with quotas(b, ({"client-id": None}, {READ: 1000.0})):
        for version in range(4, 13):
            name = b.name(f"{version:03}")
            with b.another(name) as connection:
                response: Any = b.ask(fetch(topic, 0), version, connection)
            b.note("throttle time", response.throttle_time_ms)


@scenario
def of_two_clients_of_a_user(b: Subject) -> None:
    """The record dwarfs the probes, which count towards the user's quota until the clients get separate ones."""
    topic = b.topic()
    b.produce(topic, b"x" * 900_000)
    with quotas(b, ({"user": USER}, {READ: 135_000.0})):
        b.note("one", throttle_ms(b, b.name("one"), fetch(topic, 0), 12))
        b.note("other", throttle_ms(b, b.name("other"), fetch(topic, 0), 12) > 0)


@scenario
def of_a_client_without_a_name(b: Subject) -> None:
    topic = b.topic()
    for parts in ({"client-id": None}, {"user": USER, "client-id": None}, {"user": None, "client-id": None}):
        with quotas(b, (parts, {WRITTEN: 100.0})):
            for name in (None, ""):
                b.note(f"{parts} {name}", throttle_ms(b, name, written(topic, 5000)) > 0)


@scenario
def of_a_producer_that_wants_no_answer(b: Subject) -> None:
    topic, name = b.topic(), b.name("client")
    with quotas(b, ({"client-id": name}, {WRITTEN: 1000.0})), b.another(name) as connection:
        connection.send(written(topic, 25_500, acks=0), 9)
        b.until(lambda: throttle_ms(b, name, written(topic, 1000)) > 10_000)


@scenario
def that_is_over(b: Subject) -> None:
    """The answer is immediate, but the next one on the connection is delayed. Another connection is served."""
    topic, name = b.topic(), b.name("client")
    with quotas(b, ({"client-id": name}, {WRITTEN: 1000.0})), b.another(name) as connection:
        began_s = time.monotonic()
        response: Any = connection.ask(written(topic, 11_600), 9)
        b.note("throttled", 1000 < response.throttle_time_ms < 3000)
        b.note("at once", time.monotonic() - began_s < response.throttle_time_ms / 1000)
        with b.another(name) as another:
            another.ask(ApiVersionsRequest(), 0)
        b.note("others are served", time.monotonic() - began_s < response.throttle_time_ms / 1000)
        connection.ask(ApiVersionsRequest(), 0)
        b.note("served later", time.monotonic() - began_s >= response.throttle_time_ms / 1000 - 0.01)


@scenario
def of_changed_quotas(b: Subject) -> None:
    topic, name = b.topic(), b.name("client")
    client: Parts = {"client-id": name}
    with quotas(b, (client, {WRITTEN: 1000.0})):
        b.note("exceeded", throttle_ms(b, name, written(topic, 20_000)) > 0)
        change(b, (client, {WRITTEN: 100_000.0}))
        b.note("raised", throttle_ms(b, name, written(topic, 1)))
        change(b, (client, {WRITTEN: 100.0}))
        b.note("lowered", throttle_ms(b, name, written(topic, 1)) // 100_000)
        change(b, ({"user": USER, "client-id": name}, {WRITTEN: 1e9}))
        b.note("more specific", throttle_ms(b, name, written(topic, 1)))
        change(b, ({"user": USER, "client-id": name}, {WRITTEN: None}))
        change(b, (client, {WRITTEN: None}))
        b.note("taken away", throttle_ms(b, name, written(topic, 100_000)))


JUDGED = {
    "api_versions": (ApiVersionsRequest(client_software_name="a", client_software_version="1"), 3),
    "metadata": (MetadataRequest(topics=[], allow_auto_topic_creation=False), 9),
    "find_coordinator": (FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]), 4),
    "list_groups": (ListGroupsRequest(states_filter=[]), 4),
    "describe_groups": (DescribeGroupsRequest(groups=["g"]), 5),
    "describe_cluster": (DescribeClusterRequest(include_cluster_authorized_operations=False), 0),
    "describe_configs": (DescribeConfigsRequest(resources=[]), 4),
    "heartbeat": (HeartbeatRequest(group_id="g", generation_id=1, member_id="m"), 4),
    "offset_fetch": (OffsetFetchRequest(group_id="g", topics=[]), 7),
    "list_offsets": (ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=[]), 7),
    "create_topics": (new_topics("t", validate_only=True), 7),
    "delete_topics": (old_topics("not-there"), 5),
    "produce": (written("not-there", 1), 9),
    "fetch": (fetch("not-there", 0), 12),
}


@scenario_for_each(JUDGED)
def by_time(b: Subject, asked: tuple[Request, int]) -> None:
    name = b.name("client")
    with quotas(b, ({"client-id": name}, {TIME: 1e-9})):
        b.note("throttle time", throttle_ms(b, name, *asked))
        b.note("and again", throttle_ms(b, name, *asked))


@scenario
def of_a_session_that_is_not_there(b: Subject) -> None:
    """The client gets the error only after its throttle time."""
    request = fetch(b.name("not-there"), 0)
    request.session_id, request.session_epoch = 12345, 7
    for kind, limit in ((TIME, 1e-9), (READ, 1.0), (READ, 1000.0)):
        name = b.name(f"{kind}-{limit}")
        with quotas(b, ({"client-id": name}, {kind: limit})), b.another(name) as connection:
            b.ask(request, 12, connection)


def grown(topic: str, count: int) -> CreatePartitionsRequest:
    """A request to grow a topic to this many partitions."""
    wanted = CreatePartitionsRequest.CreatePartitionsTopic(name=topic, count=count, assignments=None)
    return CreatePartitionsRequest(topics=[wanted], timeout_ms=30_000, validate_only=False)


@scenario_for_each({"strict": (6, 5, 3), "lenient": (5, 4, 2)})
def of_changes(b: Subject, versions: tuple[int, int, int]) -> None:
    """Newer versions refuse changes over the quota; older ones make the change, and throttle the client."""
    to_create, to_delete, to_grow = versions
    name, first = b.name("client"), b.topic("first")
    b.topic("second", partitions=3)

    def ask(request: Request, version: int) -> None:
        with b.another(name) as connection:
            response: Any = connection.ask(request, version)
        tens, response.throttle_time_ms = response.throttle_time_ms // 10_000, 0
        b.note(type(request).__name__, response)
        b.note("tens of seconds to wait", tens)

    with quotas(b, ({"client-id": name}, {CHANGED: 0.5})):
        ask(new_topics(b.name("judged"), partitions=50, validate_only=True), to_create)
        for suffix in ("a", "b", "c"):
            ask(new_topics(b.name(suffix), partitions=5), to_create)
        ask(new_topics(b.name("a"), partitions=5), to_create)
        ask(grown(first, 9), to_grow)
        ask(old_topics(b.name("second")), to_delete)
        ask(old_topics(b.name("not-there")), to_delete)
        ask(grown(b.name("not-there"), 9), to_grow)


CONNECTIONS = "connection_creation_rate"


@scenario_for_each({"one": "127.0.0.1", "all": None, "another": "127.0.0.2"})
def of_connections(b: Subject, ip: str | None) -> None:
    """The quota of an address, and of all addresses without a specific one. Existing connections stay open."""
    rate = 2.0
    with quotas(b):
        b.quietly(alter_request(({"ip": ip}, {CONNECTIONS: rate})), 1)
        with ExitStack() as stack:
            connections: list[WireClient] = []

            def are_refused() -> bool:
                connections[:] = [stack.enter_context(b.another()) for _ in range(3 * int(rate) * WINDOW_S)]
                return ip == "127.0.0.2" or not all(is_served(each) for each in connections[-3:])

            b.until(are_refused)
            b.note("all", all(is_served(each) for each in connections))
            b.quietly(alter_request(({"ip": ip}, {CONNECTIONS: None})), 1)
            b.until(lambda: is_served(stack.enter_context(b.another())))


def is_served(connection: WireClient) -> bool:
    """Whether a request is answered; otherwise the connection is closed in the end."""
    try:
        connection.ask(ApiVersionsRequest(), 0)
    except ConnectionClosed:
        return False
    return True
