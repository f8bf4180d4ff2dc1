"""Requests in one packet take effect in their order, whatever their APIs."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest

from protocol.api_keys import ApiKey
from protocol.messages import RESPONSE_TYPES
from protocol.messages.headers import ResponseHeader
from protocol.wire.schema import Request, Response
from tests.broker.network.effect_requests import Client, Trial
from tests.broker.network.effects import CASES, Case, essence
from tests.kit.apache_kafka import ApacheKafka
from tests.kit.broker_process import BrokerProcess
from tests.kit.due import due
from tests.kit.environment import InlineExecutor
from tests.kit.in_process import InProcessBroker, Wire, framed, request_bytes
from tests.kit.wire_client import WireClient

T = TypeVar("T")
TIMES_WITH_KAFKA = 3
LATE_IN_KAFKA = ("INCREMENTAL_ALTER_CONFIGS then PRODUCE", "ALTER_CONFIGS then PRODUCE")
"""A Kafka broker learns of a topic's new configuration from ZooKeeper, some time after acknowledging it."""


class LateExecutor(InlineExecutor):
    """Does its work after some turns of the event loop, like threads."""

    def __init__(self) -> None:
        self._random = random.Random(1)

    def run(self, function: Callable[..., T], /, *args: object) -> Awaitable[T]:
        return self._run(self._random.randrange(4), super().run, function, *args)

    @staticmethod
    async def _run(turns: int, run: Callable[..., Awaitable[T]], *args: object) -> T:
        for _ in range(turns):
            await asyncio.sleep(0)
        return await run(*args)


class Pipe:
    """A connection to a broker in this process."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    async def ask(self, request: Request, version: int) -> Any:
        return (await self.ask_together([(request, version)]))[0]

    async def ask_together(self, asked: Sequence[tuple[Request, int]]) -> list[Response]:
        written = self._wire.transport.written
        written.clear()
        self._wire.feed(b"".join(framed(request_bytes(request, version)) for request, version in asked))
        replies: list[Response] = []
        for request, version in asked:
            for _ in range(100_000):
                if len(written) >= 4 and len(written) >= 4 + int.from_bytes(written[:4], "big"):
                    break
                assert not self._wire.is_closed, f"{type(request).__name__} made it hang up"
                await asyncio.sleep(0)
            else:
                raise AssertionError(f"{type(request).__name__} is not answered")
            size = 4 + int.from_bytes(written[:4], "big")
            reply = memoryview(bytes(written[4:size]))
            del written[:size]
            _, body_at = ResponseHeader.decode_prefix(reply, request.api_key.response_header_version(version))
            replies.append(RESPONSE_TYPES[request.api_key].decode(reply[body_at:], version))
        return replies


def late_broker() -> InProcessBroker:
    broker = InProcessBroker(delete_topic_enable="true")
    broker.executor = LateExecutor()
    return broker


BY_NAME = {str(case): case for case in CASES}
READERS = {
    "CREATE_TOPICS": ("METADATA PRODUCE LIST_OFFSETS-latest DELETE_TOPICS DESCRIBE_CONFIGS OFFSET_COMMIT "
                      "CREATE_TOPICS DESCRIBE_LOG_DIRS FETCH"),
    "DELETE_TOPICS": "PRODUCE METADATA OFFSET_FETCH OFFSET_COMMIT FETCH CREATE_TOPICS DESCRIBE_CONFIGS",
    "CREATE_PARTITIONS": "METADATA PRODUCE OFFSET_COMMIT LIST_OFFSETS-latest",
    "INCREMENTAL_ALTER_CONFIGS": "DESCRIBE_CONFIGS PRODUCE",
    "ALTER_CONFIGS": "DESCRIBE_CONFIGS",
    "DELETE_GROUPS": "OFFSET_FETCH LIST_GROUPS DESCRIBE_GROUPS",
    "OFFSET_COMMIT": "OFFSET_FETCH OFFSET_DELETE",
    "OFFSET_DELETE": "OFFSET_FETCH",
    "LEAVE_GROUP": "DESCRIBE_GROUPS HEARTBEAT DELETE_GROUPS",
    "DELETE_RECORDS": "LIST_OFFSETS-earliest FETCH",
    "PRODUCE": "LIST_OFFSETS-latest LIST_OFFSETS-max-timestamp FETCH DELETE_RECORDS PRODUCE",
    "ALTER_CLIENT_QUOTAS": "DESCRIBE_CLIENT_QUOTAS",
    "PRODUCE-all": "LIST_OFFSETS-latest FETCH PRODUCE",
    "LIST_OFFSETS-max-timestamp": "PRODUCE DELETE_TOPICS",
    "ALTER_USER_SCRAM_CREDENTIALS": "DESCRIBE_USER_SCRAM_CREDENTIALS",
    "WRITE_TXN_MARKERS": "LIST_OFFSETS-latest FETCH PRODUCE",
}  # fmt: skip
"""Requests that show a write's effect, and pairs that once overtook each other. The slow test tries all pairs."""

KNOWN_PAIRS = [(BY_NAME[first], BY_NAME[second]) for first, names in READERS.items() for second in names.split()]


BETWEEN_BROKERS = (
    ApiKey.LEADER_AND_ISR,
    ApiKey.STOP_REPLICA,
    ApiKey.UPDATE_METADATA,
    ApiKey.CONTROLLED_SHUTDOWN,
    ApiKey.ALTER_PARTITION,
    ApiKey.ALLOCATE_PRODUCER_IDS,
)
"""APIs that no client pipelines with its other requests: they carry the epochs of a controller or of a broker."""


def test_every_api_is_among_the_cases() -> None:
    async def registered() -> set[int]:
        async with InProcessBroker() as broker:
            return set(broker.server.serving.dispatcher._routes)

    assert {int(case.api_key) for case in CASES} | {*map(int, BETWEEN_BROKERS)} == asyncio.run(registered())


async def replies_to(
    pipe: Client, trial: Trial, pair: tuple[Case, Case], *, together: bool, flushes: bool
) -> list[Any]:
    await trial.build(pipe, flush_messages=1 if flushes else None)
    asked = [(case.build(trial), case.version) for case in pair]
    replies = await pipe.ask_together(asked) if together else [await pipe.ask(*each) for each in asked]
    await trial.clear(pipe)
    return [essence(reply, trial) for reply in replies]


def wrong_pairs(pairs: Sequence[tuple[Case, Case]], times: int) -> dict[str, Any]:
    """The pairs whose replies depend on whether they came in one packet, with both variants of the replies."""
    wrong: dict[str, Any] = {}

    async def play() -> None:
        number = 0
        async with late_broker() as broker:
            pipe = Pipe(broker.connect())
            for pair in pairs:
                for flushes in (False, True):
                    number += 1
                    expected = await replies_to(pipe, Trial(number), pair, together=False, flushes=flushes)
                    for _ in range(times):
                        number += 1
                        found = await replies_to(pipe, Trial(number), pair, together=True, flushes=flushes)
                        if found != expected:
                            wrong[f"{pair[0]} then {pair[1]}"] = (expected, found)

    asyncio.run(play())
    return wrong


@pytest.mark.parametrize("first", READERS)
def test_what_is_behind_a_request_sees_what_it_did(first: str) -> None:
    assert wrong_pairs([pair for pair in KNOWN_PAIRS if pair[0] is BY_NAME[first]], 2) == {}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", due(READERS))
def test_it_does_so_a_hundred_times(first: str) -> None:
    assert wrong_pairs([pair for pair in KNOWN_PAIRS if pair[0] is BY_NAME[first]], 50) == {}


@pytest.mark.slow
@pytest.mark.parametrize("first", due(case for case in CASES if case.api_key is not ApiKey.JOIN_GROUP), ids=str)
def test_every_pair_of_requests(first: Case) -> None:
    """All except JoinGroup, which lets every request pass while it waits for other members."""
    assert wrong_pairs([(first, second) for second in CASES], 1) == {}


class Socket:
    """A separate connection to a broker."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._client = WireClient(host, int(port), "test")

    def close(self) -> None:
        self._client.close()

    async def ask(self, request: Request, version: int) -> Any:
        return self._client.ask(request, version)

    async def ask_together(self, asked: Sequence[tuple[Request, int]]) -> list[Response]:
        self._client.send_bytes(b"".join(framed(request_bytes(request, version)) for request, version in asked))
        return [self._client.receive(type(request), version) for request, version in asked]


@pytest.mark.slow
@pytest.mark.java
@pytest.mark.timeout(900)
def test_apache_kafka_gives_the_same_replies(tmp_path: Path) -> None:
    settings = {
        "offsets.topic.num.partitions": "4",
        "auto.create.topics.enable": "false",
        "log.retention.ms": "-1",
    }
    kafka, ours = ApacheKafka(tmp_path / "kafka", settings), BrokerProcess(tmp_path / "ours", settings)
    different: dict[str, Any] = {}

    async def play(sides: Sequence[Socket]) -> None:
        number = 0
        for _ in range(TIMES_WITH_KAFKA):
            for pair in due(KNOWN_PAIRS):
                for flushes in (False, True):
                    number += 1
                    theirs, found = [
                        await replies_to(side, Trial(number), pair, together=True, flushes=flushes) for side in sides
                    ]
                    name = f"{pair[0]} then {pair[1]}"
                    if theirs != found and name not in LATE_IN_KAFKA:
                        different[name] = (theirs, found)

    with contextlib.ExitStack() as stack:
        for each in (kafka, ours):
            each.start()
            stack.callback(each.stop)
        sides = [Socket(each.address) for each in (kafka, ours)]
        for side in sides:
            stack.callback(side.close)
        asyncio.run(play(sides))
    assert not different, "\n".join(f"{pair}:\n  {theirs}\n  {found}" for pair, (theirs, found) in different.items())
