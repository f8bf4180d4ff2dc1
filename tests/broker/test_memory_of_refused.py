"""A broker process retains no memory from refused requests, nor from former group members."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from protocol.errors import ApiError, ErrorCode, detached
from protocol.messages.configs import IncrementalAlterConfigsRequest
from protocol.messages.coordinators import FindCoordinatorRequest
from protocol.messages.fetch import FetchRequest
from protocol.messages.groups import JoinGroupRequest
from tests.kit import group_requests, heavy_requests
from tests.kit.broker_process import BrokerProcess
from tests.kit.waiting import eventually
from tests.kit.wire_client import WireClient

PARTITIONS = 2_000


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    process = BrokerProcess(tmp_path_factory.mktemp("refused"), {"message.max.bytes": "40000000"})
    process.start()
    yield process
    process.stop()


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[WireClient]:
    host, port = broker.address.split(":")
    with WireClient(host, int(port)) as connected:
        yield connected


def resident_bytes(broker: BrokerProcess, *, at_the_peak: bool = False) -> int:
    """The process's current memory (RSS), or its peak since `forget_peak`."""
    lines = Path(f"/proc/{broker.pid}/status").read_text().splitlines()
    name = "VmHWM:" if at_the_peak else "VmRSS:"
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


def forget_peak(broker: BrokerProcess) -> None:
    Path(f"/proc/{broker.pid}/clear_refs").write_text("5")


def test_a_large_fetch_takes_no_more_than_its_request_and_answer(broker: BrokerProcess, client: WireClient) -> None:
    """It used to need more than six times as much: every partition was an object, and so was its answer."""
    request = heavy_requests.fetch_unknown(150_000)
    client.send_bytes(heavy_requests.fetch_unknown(2_000))
    client.receive_frame()
    before = resident_bytes(broker)
    forget_peak(broker)
    client.send_bytes(request)
    exchanged = len(request) + len(client.receive_frame())
    assert resident_bytes(broker, at_the_peak=True) - before < 3 * exchanged


def test_a_fetch_of_unknown_partitions_leaves_nothing(broker: BrokerProcess, client: WireClient) -> None:
    """Each of 120,000 errors used to retain its traceback: 500 bytes, and the answers too."""
    partitions = [
        FetchRequest.FetchPartition(partition=number, fetch_offset=0, partition_max_bytes=1)
        for number in range(PARTITIONS)
    ]
    request = FetchRequest(
        max_wait_ms=0, min_bytes=0, topics=[FetchRequest.FetchTopic(topic="unknown", partitions=partitions)]
    )

    def ask(times: int) -> None:
        for _ in range(times):
            answer = client.ask(request, 12)
            topic = answer.responses[0]  # type: ignore[attr-defined]
            assert {each.error_code for each in topic.partitions} == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}

    ask(20)
    before = resident_bytes(broker)
    ask(60)
    assert resident_bytes(broker) - before < 20_000_000


def await_coordinator(client: WireClient) -> None:
    def is_coordinated() -> bool:
        client.ask(FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]), 4)
        answer = client.ask(group_requests.join("g"), 5)
        return answer.error_code == ErrorCode.MEMBER_ID_REQUIRED  # type: ignore[attr-defined]

    eventually("the coordinator", is_coordinated)


def test_members_that_are_gone_leave_nothing(broker: BrokerProcess, client: WireClient) -> None:
    """The heap of deadlines used to keep a member for five minutes, the timeout of its first join."""
    metadata = bytes(10_000_000)

    def join_and_leave(group: str) -> None:
        first = client.ask(group_requests.join(group), 5)
        member: str = first.member_id  # type: ignore[attr-defined]
        joined = client.ask(group_requests.join(group, member, protocols=[("range", metadata)]), 5)
        assert joined.error_code == 0  # type: ignore[attr-defined]
        left = client.ask(group_requests.leave(group, (member, None)), 4)
        assert left.error_code == 0  # type: ignore[attr-defined]

    await_coordinator(client)
    for number in range(2):
        join_and_leave(f"before-{number}")
    before = resident_bytes(broker)
    for number in range(8):
        join_and_leave(f"group-{number}")
    assert resident_bytes(broker) - before < 30_000_000


def test_a_join_has_four_times_what_the_log_takes_in_a_record(client: WireClient) -> None:
    await_coordinator(client)
    change = IncrementalAlterConfigsRequest.AlterableConfig(name="max.message.bytes", config_operation=0, value="10000")
    topic = IncrementalAlterConfigsRequest.AlterConfigsResource(
        resource_type=2, resource_name="__consumer_offsets", configs=[change]
    )
    client.ask(IncrementalAlterConfigsRequest(resources=[topic], validate_only=False), 1)

    def error_of(size: int) -> int:
        answer = client.ask(group_requests.join("bounded", protocols=[("range", bytes(size))]), 5)
        return int(answer.error_code)  # type: ignore[attr-defined]

    eventually("the bound", lambda: error_of(40_000), lambda error: error == ErrorCode.GROUP_MAX_SIZE_REACHED)
    assert error_of(30_000) == ErrorCode.MEMBER_ID_REQUIRED


def test_a_join_with_very_many_protocols_is_refused_before_they_are_kept(
    broker: BrokerProcess, client: WireClient
) -> None:
    await_coordinator(client)
    request = heavy_requests.join_group(300_000)
    before = resident_bytes(broker)
    forget_peak(broker)
    client.send_bytes(request)
    answer = client.receive(JoinGroupRequest, 3)
    assert answer.error_code == ErrorCode.GROUP_MAX_SIZE_REACHED  # type: ignore[attr-defined]
    assert resident_bytes(broker, at_the_peak=True) - before < 20_000_000  # 95 MB when each was kept


def test_a_detached_error_says_the_same() -> None:
    try:
        try:
            Path("/no/such/file").read_bytes()
        except OSError as error:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, "unreadable") from error
    except ApiError as error:
        copy = detached(error)
    assert (str(copy), copy.error_code) == ("KAFKA_STORAGE_ERROR: unreadable", ErrorCode.KAFKA_STORAGE_ERROR)
    assert str(copy.__cause__) == "[Errno 2] No such file or directory: '/no/such/file'"
    assert copy.__traceback__ is copy.__cause__.__traceback__ is None  # type: ignore[union-attr]
