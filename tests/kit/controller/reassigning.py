"""Move replicas and elect leaders through the controller, as an administrator would."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Container, Mapping, Sequence

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ClusterMetadata
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from protocol.errors import ErrorCode
from protocol.messages.reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
)
from protocol.wire.schema import Request, Response
from tests.kit.waiting import eventually
from tests.kit.wire_client import WireClient

Replicas = Mapping[tuple[str, int], Sequence[int]]
"""Broker ids by topic and partition, the preferred leader first."""


def metadata_of(address: str, timeout_s: float = 5.0) -> ClusterMetadata:
    """The cluster's metadata from one of the brokers at these addresses. Raises KafkaException if none answers."""
    # Give up soon on a connection to a paused or dead broker, and ask another one.
    settings = {
        "log_level": 0,
        "reconnect.backoff.max.ms": 200,
        "socket.timeout.ms": 2_000,
        "api.version.request.timeout.ms": 1_000,
    }
    return AdminClient({"bootstrap.servers": address, **settings}).list_topics(timeout=timeout_s)


def ask_controller(address: str, request: Request, version: int, timeout_s: float) -> Response:
    """Send one request to the controller. Raises KafkaException and KeyError while it is unknown, and WireClient's
    errors.
    """
    metadata = metadata_of(address)
    controller = metadata.brokers[metadata.controller_id]
    with WireClient(controller.host, controller.port, timeout_s=timeout_s) as client:
        return client.ask(request, version)


def reassign(address: str, wanted: Replicas, timeout_s: float = 30.0) -> None:
    """Request replicas; the move has only begun when this returns. Fails if the controller refuses one."""
    parts = AlterPartitionReassignmentsRequest.ReassignablePartition
    by_topic = defaultdict(list)
    for (topic, partition), replicas in wanted.items():
        by_topic[topic].append(parts(partition_index=partition, replicas=list(replicas)))
    topics = [
        AlterPartitionReassignmentsRequest.ReassignableTopic(name=topic, partitions=partitions)
        for topic, partitions in by_topic.items()
    ]
    request = AlterPartitionReassignmentsRequest(topics=topics, timeout_ms=int(timeout_s * 1000))
    response = ask_controller(address, request, 0, timeout_s)
    assert isinstance(response, AlterPartitionReassignmentsResponse)
    codes = {each.error_code for topic in response.responses for each in topic.partitions} | {response.error_code}
    assert codes == {ErrorCode.NONE}, codes


def elect_preferred(address: str, timeout_s: float = 30.0) -> None:
    """Elect the preferred replica of every partition as its leader. Fails if the controller refuses all."""
    request = ElectLeadersRequest(topic_partitions=None, timeout_ms=int(timeout_s * 1000))
    response = ask_controller(address, request, 2, timeout_s)
    assert isinstance(response, ElectLeadersResponse)
    assert response.error_code == ErrorCode.NONE, response.error_code


def elect_controller(zookeeper: KazooClient, wanted: Container[int]) -> None:
    """Make one of these brokers the controller, by deleting the controller's node until one of them wins."""

    def controller() -> int | None:
        try:
            found: int = json.loads(zookeeper.get("/controller")[0])["brokerid"]
            if found not in wanted:
                zookeeper.delete("/controller")
        except NoNodeError:
            return None
        return found

    eventually("the controller", controller, lambda found: found in wanted, pause_s=0.5)


def await_replicas(address: str, wanted: Replicas, patience_s: float = 60.0) -> None:
    """Wait until these are the replicas, all in sync, and one of them leads, according to every broker at these
    addresses.
    """

    def differing(one: str) -> dict[tuple[str, int], tuple[list[int], list[int], int]]:
        topics = metadata_of(one).topics
        found = {(topic, number): topics[topic].partitions[number] for topic, number in wanted}
        return {
            key: (each.replicas, each.isrs, each.leader)
            for key, each in found.items()
            if each.replicas != list(wanted[key])
            or sorted(each.isrs) != sorted(wanted[key])
            or each.leader not in wanted[key]
        }

    for one in address.split(","):
        eventually(
            f"the replicas at {one}",
            lambda one=one: differing(one),  # type: ignore[misc]
            lambda found: not found,
            not_yet=(KafkaException, KeyError),
            patience_s=patience_s,
        )
