"""The broker from a scenario's view: the scenario sends requests, and the answers go into a transcript."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from protocol.errors import ErrorCode
from protocol.messages.coordinators import FindCoordinatorRequest, FindCoordinatorResponse
from protocol.messages.group_admin import DescribeGroupsRequest, DescribeGroupsResponse
from protocol.messages.metadata import MetadataRequest, MetadataResponse
from protocol.messages.produce import ProduceRequest, ProduceResponse
from protocol.messages.producer_ids import InitProducerIdRequest, InitProducerIdResponse
from protocol.messages.topics import CreateTopicsRequest, CreateTopicsResponse
from protocol.records.batch import BatchOptions, Record, build_batch
from protocol.wire.schema import Request
from tests.kit.waiting import eventually
from tests.kit.wire_client import ConnectionClosed, WireClient
from tests.parity.transcript import Mask, Plain

PATIENCE_S = 60.0
TIMESTAMP = 1_600_000_000_000
"""The time of the scenarios' records: fixed, so that CRCs are equal."""

ONE_FOR_EACH = ("a", "b", "c", "d")
"""Groups, one for each of the four partitions of the offsets topic."""

Scenario = Callable[["Subject"], None]
Row = TypeVar("Row")
PlayedSubject = TypeVar("PlayedSubject", bound="Subject")


class Target(NamedTuple):
    """A running broker. `data_directory` is masked in transcripts."""

    address: str
    data_directory: str = ""


class Subject:
    """One broker in one scenario. Topics and groups are named after the scenario, so scenarios do not meet."""

    def __init__(self, target: Target, scenario: str, salt: str = "") -> None:
        host, _, port = target.address.rpartition(":")
        self.host = host
        self.port = int(port)
        self.prefix = scenario.replace("_", "-") + salt
        self.mask = Mask(self.port, salt=salt, data_directories=[target.data_directory])
        self.transcript: dict[str, Plain] = {}
        self.connection = self.connect()

    def connect(self, client_id: str | None = "parity") -> WireClient:
        """An additional connection; the caller closes it."""
        return WireClient(self.host, self.port, client_id)

    @contextlib.contextmanager
    def another(self, client_id: str | None = "parity") -> Iterator[WireClient]:
        """An additional connection for the duration of a block."""
        with self.connect(client_id) as connection:
            yield connection

    def close(self) -> None:
        """End the scenario."""
        self.connection.close()

    # -- asking --------------------------------------------------------------------------------------------------------

    def ask(self, request: Request, version: int, connection: WireClient | None = None) -> Any:
        """Send a request and note the answer or the closed connection."""
        name = f"{type(request).__name__.removesuffix('Request')} v{version}"
        try:
            response = (connection or self.connection).ask(request, version)
        except ConnectionClosed:
            self.note(name, "<connection closed>")
            if connection is None:
                self.connection.close()
                self.connection = self.connect()
            return None
        self.note(name, response)
        return response

    def quietly(self, request: Request, version: int) -> Any:
        """Send a request without noting the answer."""
        return self.connection.ask(request, version)

    def note(self, label: str, value: Any) -> None:
        """Add anything to the transcript."""
        self.transcript[f"{len(self.transcript) + 1} {label}"] = self.mask.plain(value)

    def until(self, done: Callable[[], Any]) -> Any:
        """Call `done` until it returns something true. Raises AssertionError after a timeout."""
        where = f"{Path(done.__code__.co_filename).name}:{done.__code__.co_firstlineno}"
        return eventually(f"{done.__qualname__} ({where})", done, patience_s=PATIENCE_S, pause_s=0.01)

    # -- what most scenarios need --------------------------------------------------------------------------------------

    def name(self, suffix: str = "t") -> str:
        """A unique name for this scenario's topics and groups."""
        return f"{self.prefix}-{suffix}"

    def topic(self, suffix: str = "t", partitions: int = 1, configs: Mapping[str, str] | None = None) -> str:
        """Create a topic and wait until every partition has a leader; returns its name."""
        name = self.name(suffix)
        configured = [
            CreateTopicsRequest.CreatableTopicConfig(name=key, value=value) for key, value in (configs or {}).items()
        ]
        topic = CreateTopicsRequest.CreatableTopic(
            name=name, num_partitions=partitions, replication_factor=1, assignments=[], configs=configured
        )

        def created() -> bool:
            response: CreateTopicsResponse = self.quietly(
                CreateTopicsRequest(topics=[topic], timeout_ms=30_000, validate_only=False), 7
            )
            result = response.topics[0]
            # Kafka may still be deleting one with the same name.
            deleting = "marked for deletion" in (result.error_message or "")
            assert deleting or result.error_code == ErrorCode.NONE, result
            return not deleting

        self.until(created)
        self.await_leaders(name, partitions)
        return name

    def await_leaders(self, name: str, partitions: int = 1) -> None:
        """Wait until the topic has leaders, even though Kafka's metadata precedes the log itself."""

        def has_leaders() -> bool:
            response: MetadataResponse = self.metadata(name)
            topic = response.topics[0]
            if topic.error_code or len(topic.partitions) < partitions:
                return False
            self.mask.name_id(topic.topic_id, name)
            return all(partition.error_code == ErrorCode.NONE for partition in topic.partitions)

        self.until(has_leaders)

    def metadata(self, *names: str) -> MetadataResponse:
        """Metadata of topics, without creating them; not noted."""
        topics = [MetadataRequest.MetadataRequestTopic(name=name) for name in names]
        answer: MetadataResponse = self.quietly(MetadataRequest(topics=topics, allow_auto_topic_creation=False), 12)
        return answer

    def topic_id(self, name: str) -> Any:
        """The topic's id."""
        return self.metadata(name).topics[0].topic_id

    def produce(
        self, topic: str, *values: bytes, partition: int = 0, acks: int = -1, version: int = 11, **options: Any
    ) -> ProduceResponse:
        """Produce one batch of `values`, not noted; raises AssertionError if it is refused."""
        response: ProduceResponse = self.quietly(
            produce_request(topic, batch(*values, **options), partition=partition, acks=acks), version
        )
        error = response.responses[0].partition_responses[0].error_code
        assert error == ErrorCode.NONE, ErrorCode(error).name
        return response

    def coordinator(self, group: str) -> str:
        """Wait for the group's coordinator; returns the group."""

        def found() -> bool:
            response: FindCoordinatorResponse = self.quietly(
                FindCoordinatorRequest(key_type=0, coordinator_keys=[group]), 4
            )
            if response.coordinators[0].error_code != ErrorCode.NONE:
                return False
            # Kafka names the coordinator before it has loaded the group, and loads one partition after the other:
            # scenarios use groups of the other three, too.
            described: DescribeGroupsResponse = self.quietly(DescribeGroupsRequest(groups=[group, *ONE_FOR_EACH]), 5)
            return all(each.error_code == ErrorCode.NONE for each in described.groups)

        self.until(found)
        return group

    def producer_id(self) -> tuple[int, int]:
        """A new producer id and epoch. Kafka refuses until its controller has allocated a block."""

        def given() -> InitProducerIdResponse | None:
            request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
            response: InitProducerIdResponse = self.quietly(request, 5)
            if response.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                return None
            assert response.error_code == ErrorCode.NONE, response
            return response

        response = self.until(given)
        return response.producer_id, response.producer_epoch


def batch(*values: bytes, base_timestamp: int = TIMESTAMP, keys: bool = False, **options: Any) -> bytes:
    """One record batch; record i has timestamp `base_timestamp` + i and, with `keys`, the key `k<i>`."""
    records = [
        Record(
            offset=index,
            timestamp=base_timestamp + index,
            key=b"k%d" % index if keys else None,
            value=value,
            headers=[],
        )
        for index, value in enumerate(values)
    ]
    typed: BatchOptions = options  # type: ignore[assignment]
    return build_batch(records, **typed)


def produce_request(
    topic: str, records: bytes | None, *, partition: int = 0, acks: int = -1, transactional_id: str | None = None
) -> ProduceRequest:
    """A ProduceRequest for one partition."""
    data = ProduceRequest.PartitionProduceData(index=partition, records=records)
    return ProduceRequest(
        transactional_id=transactional_id,
        acks=acks,
        timeout_ms=10_000,
        topic_data=[ProduceRequest.TopicProduceData(name=topic, partition_data=[data])],
    )


_SCENARIOS: dict[str, Scenario] = {}


def scenario(function: Scenario) -> Scenario:
    """Register a scenario under `<file>.<function>`."""
    name = f"{function.__module__.rpartition('.')[2]}.{function.__name__}"
    assert name not in _SCENARIOS, f"two scenarios named {name}"
    _SCENARIOS[name] = function
    return function


def scenario_for_each(rows: Mapping[str, Row]) -> Callable[[Callable[[Subject, Row], None]], None]:
    """Register a scenario for each of `rows` under `<file>.<function>.<row's name>`; it is given the row."""

    def register(function: Callable[[Subject, Row], None]) -> None:
        for name, row in rows.items():

            def play_row(b: Subject, row: Row = row) -> None:
                function(b, row)

            play_row.__module__, play_row.__name__ = function.__module__, f"{function.__name__}.{name}"
            scenario(play_row)

    return register


def scenarios() -> dict[str, Scenario]:
    """All scenarios by name, in the order of their files."""
    import importlib

    folder = Path(__file__).parent / "scenarios"
    for path in sorted(folder.rglob("*.py")):
        module = ".".join(path.relative_to(folder).with_suffix("").parts)
        importlib.import_module(f"tests.parity.scenarios.{module}")
    return _SCENARIOS


def play(name: str, target: Target, salt: str = "") -> dict[str, Plain]:
    """Play one scenario against a broker; returns its transcript.

    `salt` goes into the names of topics and groups, and out of the transcript: for a broker that has seen them before.
    """
    return played(Subject(target, name, salt), scenarios()[name])


def played(subject: PlayedSubject, scenario: Callable[[PlayedSubject], None]) -> dict[str, Plain]:
    """Play a scenario with `subject`, and close it; returns its transcript."""
    try:
        scenario(subject)
    finally:
        subject.close()
    return subject.transcript
