"""A cluster from a scenario's view: requests go to one broker or another, and the answers into a transcript."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from protocol.errors import ErrorCode
from protocol.messages.metadata import MetadataRequest
from protocol.messages.reassignments import AlterPartitionReassignmentsRequest
from protocol.messages.topics import CreateTopicsRequest, CreateTopicsResponse, DeleteTopicsRequest
from protocol.topic_partition import CONSUMER_OFFSETS
from protocol.wire.schema import Request
from tests.parity.cluster.clusters import BROKERS, ClusterTarget
from tests.parity.subject import Subject, Target
from tests.parity.transcript import Mask

CONTROLLER, OTHER, STOPPED = BROKERS
"""Broker 0 is the controller; some scenarios stop broker 2."""

ClusterScenario = Callable[["ClusterSubject"], None]
StoppedScenario = Callable[["ClusterSubject"], Generator[None]]
Moves = Mapping[int, Sequence[int] | None]
"""Replicas by partition, with None to cancel a reassignment."""


class ClusterSubject(Subject):
    """Three brokers in one scenario. Requests go to the controller, or to the broker chosen by `at`."""

    def __init__(self, target: ClusterTarget, scenario: str, salt: str = "") -> None:
        super().__init__(Target(target.addresses[CONTROLLER]), scenario, salt)
        ports = [int(address.rpartition(":")[2]) for address in target.addresses]
        self.mask = Mask(*ports, salt=salt, data_directories=target.data_directories)
        self._ports = ports
        self._connections = {CONTROLLER: self.connection}
        self._asked = CONTROLLER
        self.live = list(BROKERS)
        """Brokers that run."""

    def close(self) -> None:
        """End the scenario."""
        self._connections[self._asked] = self.connection
        for connection in self._connections.values():
            connection.close()

    @contextlib.contextmanager
    def at(self, broker_id: int) -> Iterator[None]:
        """Send requests to this broker for the duration of a block."""
        before = self._asked
        self._switch_to(broker_id)
        try:
            yield
        finally:
            self._switch_to(before)

    def _switch_to(self, broker_id: int) -> None:
        self._connections[self._asked] = self.connection
        self._asked, self.port = broker_id, self._ports[broker_id]
        known = self._connections.get(broker_id)
        self.connection = self.connect() if known is None else known

    def everywhere(self, request: Request, version: int) -> None:
        """Send the request to every running broker."""
        for broker_id in self.live:
            with self.at(broker_id):
                self.ask(request, version)

    def note(self, label: str, value: Any) -> None:
        """See `Subject.note`; the label names the broker."""
        super().note(f"{label} at {self._asked}", value)

    # -- topics --------------------------------------------------------------------------------------------------------

    def replicated(self, suffix: str, *replicas: tuple[int, ...], configs: Mapping[str, str] | None = None) -> str:
        """Create a topic with these replicas for each partition, and wait until every broker knows that all of them are
        in sync; returns its name.
        """
        name = self.name(suffix)

        def is_there() -> bool:
            response: CreateTopicsResponse = self.quietly(created(name, *replicas, configs=configs), 7)
            code = response.topics[0].error_code
            # Kafka may still be deleting one with the same name.
            assert code in {ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS}, response
            return code == ErrorCode.NONE

        self.until(is_there)
        self.await_partitions(name, {number: tuple(each) for number, each in enumerate(replicas)})
        return name

    def delete(self, name: str) -> None:
        """Delete a topic, unrecorded."""
        response = self.quietly(DeleteTopicsRequest(topic_names=[name], timeout_ms=30_000), 5)
        assert response.responses[0].error_code == ErrorCode.NONE, response

    def offsets_topic(self) -> None:
        """The topic of the groups, with one partition led by each broker: created by the first scenario that needs
        it.
        """
        configs = {"cleanup.policy": "compact", "segment.bytes": "104857600", "compression.type": "producer"}
        replicas = ((0, 1, 2), (1, 2, 0), (2, 0, 1))
        response = self.quietly(created(CONSUMER_OFFSETS, *replicas, configs=configs), 7)
        assert response.topics[0].error_code in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS), response
        self.await_partitions(CONSUMER_OFFSETS, dict(enumerate(replicas)))

    def elect_anew(self, name: str) -> None:
        """Begin another leader epoch of partition 0, which has two replicas, with the same leader: the replicas' order
        changes.
        """
        before = self.metadata(name).topics[0].partitions[0]
        order = before.replica_nodes[::-1]
        self.quietly(reassignment({name: {0: order}}), 0)

        def is_so() -> bool:
            now = self.metadata(name).topics[0].partitions[0]
            return bool(now.replica_nodes == order and now.leader_epoch > before.leader_epoch)

        for broker_id in self.live:
            with self.at(broker_id):
                self.until(is_so)

    def await_partitions(self, name: str, isr: Mapping[int, tuple[int, ...]]) -> None:
        """Wait until every broker reports these in-sync replicas for each partition, in any order."""

        def is_so() -> bool:
            topic = self.metadata(name).topics[0]
            if topic.error_code == ErrorCode.NONE:
                self.mask.name_id(topic.topic_id, name)
            return {each.partition_index: sorted(each.isr_nodes) for each in topic.partitions} == {
                number: sorted(each) for number, each in isr.items()
            } and all(each.leader_id >= 0 for each in topic.partitions)

        for broker_id in self.live:
            with self.at(broker_id):
                self.until(is_so)

    def await_leader(self, name: str, leader: int, partition: int = 0) -> None:
        """Wait until every broker reports this leader."""

        def is_so() -> bool:
            partitions = self.metadata(name).topics[0].partitions
            return any(each.partition_index == partition and each.leader_id == leader for each in partitions)

        for broker_id in self.live:
            with self.at(broker_id):
                self.until(is_so)

    def describe(self, *names: str, version: int = 12) -> None:
        """Metadata of topics, into the transcript."""
        topics = [MetadataRequest.MetadataRequestTopic(name=name) for name in names]
        self.ask(MetadataRequest(topics=topics, allow_auto_topic_creation=False), version)


def created(
    name: str, *replicas: tuple[int, ...], configs: Mapping[str, str] | None = None, validate_only: bool = False
) -> CreateTopicsRequest:
    """The request that creates a topic with these replicas for each partition."""
    topic = CreateTopicsRequest.CreatableTopic(
        name=name,
        num_partitions=-1,
        replication_factor=-1,
        assignments=[
            CreateTopicsRequest.CreatableReplicaAssignment(partition_index=number, broker_ids=list(each))
            for number, each in enumerate(replicas)
        ],
        configs=[
            CreateTopicsRequest.CreatableTopicConfig(name=key, value=value) for key, value in (configs or {}).items()
        ],
    )
    return CreateTopicsRequest(topics=[topic], timeout_ms=30_000, validate_only=validate_only)


def reassignment(moves: Mapping[str, Moves]) -> AlterPartitionReassignmentsRequest:
    """The request for {topic: {partition: replicas}}."""
    request = AlterPartitionReassignmentsRequest
    return request(
        timeout_ms=10_000,
        topics=[
            request.ReassignableTopic(
                name=name,
                partitions=[
                    request.ReassignablePartition(
                        partition_index=number, replicas=None if replicas is None else list(replicas)
                    )
                    for number, replicas in partitions.items()
                ],
            )
            for name, partitions in moves.items()
        ],
    )


_SCENARIOS: dict[str, ClusterScenario] = {}
_STOPPED: dict[str, StoppedScenario] = {}


def cluster_scenario(function: ClusterScenario) -> ClusterScenario:
    """Register a scenario for three running brokers, under `<file>.<function>`."""
    _SCENARIOS[_name(function)] = function
    return function


def stopped_scenario(function: StoppedScenario) -> StoppedScenario:
    """Register a scenario that yields once: broker 2 is stopped at that point."""
    _STOPPED[_name(function)] = function
    return function


def _name(function: Callable[..., object]) -> str:
    name = f"{function.__module__.rpartition('.')[2]}.{function.__name__}"
    assert name not in _SCENARIOS, f"two scenarios named {name}"
    assert name not in _STOPPED, f"two scenarios named {name}"
    return name


def cluster_scenarios() -> dict[str, ClusterScenario]:
    """The scenarios for three running brokers by name, in the order of their files."""
    _load()
    return _SCENARIOS


def stopped_scenarios() -> dict[str, StoppedScenario]:
    """The scenarios that stop broker 2."""
    _load()
    return _STOPPED


def _load() -> None:
    for path in sorted((Path(__file__).parent / "scenarios").glob("*.py")):
        importlib.import_module(f"tests.parity.cluster.scenarios.{path.stem}")
