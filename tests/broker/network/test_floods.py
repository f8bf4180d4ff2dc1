"""Thousands of elements in any array of any served request: every turn of the event loop stays short.

The arrays come from the message declarations, so that a new API is included automatically.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any, Final, Self

import pytest

from protocol.acl_types import AclOperation, AclPermissionType, PatternType, ResourceType
from protocol.api_keys import ApiKey
from protocol.messages import REQUEST_TYPES
from protocol.messages.quotas import AlterClientQuotasRequest
from protocol.wire.schema import Request, Struct, fields_of
from protocol.wire.wire_types import ArrayOf, Blob, FieldSpec, RecordsBlob, StructOf, Text, Versions
from tests.kit import memory_file_system
from tests.kit.environment import CountedSlices
from tests.kit.in_process import InProcessBroker
from tests.kit.wire_requests import framed, new_topic, request_bytes

MANY: Final = 1_500
STEPS: Final = 4 * MANY + 4_000
"""The limit of lines in a turn: a pass or two over all elements that only gather them, some 0.1 us each."""
CHECKS: Final = 20
"""A slice ends after this many checks."""


class StepsPerTurn:
    """Counts the lines that run between two turns of the event loop, each line of a loop once per iteration. The work
    of the in-memory disk is excluded.
    """

    def __init__(self) -> None:
        self.most = 0
        self._steps = 0

    def __enter__(self) -> Self:
        sys.settrace(self._enter_function)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def turn(self) -> None:
        """End a turn of the event loop."""
        self.most = max(self.most, self._steps)
        self._steps = 0

    def _enter_function(self, frame: FrameType, _event: str, _argument: Any) -> Any:
        return None if frame.f_code.co_filename == memory_file_system.__file__ else self._count

    def _count(self, _frame: FrameType, event: str, _argument: Any) -> Any:
        self._steps += event == "line"
        return self._count


def arrays_of(struct: type[Struct], versions: Versions) -> Iterator[tuple[tuple[str, ...], int]]:
    """The paths to all arrays in a struct, with the newest version that has them."""
    for spec in fields_of(struct):
        known = Versions(max(versions.low, spec.versions.low), min(versions.high, spec.versions.high))
        if known.low > known.high or not isinstance(spec.type, ArrayOf):
            continue
        yield (spec.name,), known.high
        if isinstance(spec.type.element, StructOf):
            for path, version in arrays_of(spec.type.element.struct, known):
                yield (spec.name, *path), version


def flood(struct: type[Any], version: int, path: tuple[str, ...], size: int, number: int = 0) -> Any:
    """A message or struct with `size` elements at the end of the path, one element on the way to it, and no others."""
    values = {}
    for spec in fields_of(struct):
        if not spec.versions.low <= version <= spec.versions.high:
            continue
        if not isinstance(spec.type, ArrayOf):
            values[spec.name] = value_of(spec, number)
            continue
        count = 0 if not path or spec.name != path[0] else size if len(path) == 1 else 1
        element = spec.type.element
        if isinstance(element, StructOf):
            values[spec.name] = [flood(element.struct, version, path[1:], size, at) for at in range(count)]
        else:
            values[spec.name] = [f"t{at}" if isinstance(element, Text) else at for at in range(count)]
    return struct(**values)


def value_of(spec: FieldSpec, number: int) -> Any:
    """Names that differ, and other values that a handler can process."""
    if spec.name in VALUES:
        return VALUES[spec.name]
    if isinstance(spec.type, Text):
        return f"t{number}"
    if isinstance(spec.type, Blob | RecordsBlob):
        return b""
    if spec.name in {"partition", "partition_index", "index"}:
        return number
    return spec.default() if callable(spec.default) else spec.default


VALUES: Final = {
    "acks": 1,
    "group_id": "g",
    "operation": AclOperation.READ,
    "pattern_type_filter": PatternType.LITERAL,
    "permission_type": AclPermissionType.ALLOW,
    "resource_pattern_type": PatternType.LITERAL,
    "resource_type": ResourceType.TOPIC,
    "resource_type_filter": ResourceType.TOPIC,
}
"""Fields without which a request is refused at once."""

COUNTED: Final = {ApiKey.FETCH, ApiKey.LEADER_AND_ISR, ApiKey.UPDATE_METADATA, ApiKey.STOP_REPLICA}
"""APIs whose slices have a fixed number of partitions, at most 5,000."""

REFUSED_AT_ONCE: Final = {
    ApiKey.ADD_PARTITIONS_TO_TXN,
    ApiKey.ALTER_CLIENT_QUOTAS,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
}
"""APIs whose authorization error names every element, in one go."""

FLOODS: Final = [
    pytest.param(request_type, path, version, id=f"{request_type.__name__}.{'.'.join(path)}")
    for api_key, request_type in REQUEST_TYPES.items()
    if api_key not in COUNTED
    for path, version in arrays_of(request_type, Versions(request_type.min_version, request_type.max_version))
]


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module", params=["served", "refused"])
def broker(runner: asyncio.Runner, request: pytest.FixtureRequest) -> Iterator[InProcessBroker]:
    """One broker without an authorizer, and one with an authorizer that denies the client everything."""
    settings = {"socket_request_max_bytes": "10000000", "auto_create_topics_enable": "false"}
    if request.param == "refused":
        settings["authorizer_class_name"] = "kafka.security.authorizer.AclAuthorizer"
    broker = InProcessBroker(**settings)
    broker.clock = CountedSlices(CHECKS)

    async def start() -> None:
        await broker.__aenter__()
        await broker.connect().ask(new_topic("t0", 2), 7)

    runner.run(start())
    yield broker
    runner.run(broker.__aexit__(None, None, None))


@pytest.fixture(autouse=True)
def _without_log() -> Iterator[None]:
    """Each refusal logs a line. Not for as long as the broker: the next module's tests may run before it ends."""
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize(("request_type", "path", "version"), FLOODS)
def test_no_array_holds_the_event_loop(
    runner: asyncio.Runner,
    broker: InProcessBroker,
    request: pytest.FixtureRequest,
    request_type: type[Request],
    path: tuple[str, ...],
    version: int,
) -> None:
    async def answered(size: int) -> int:
        """The maximum number of lines in a turn."""
        wire = broker.connect()
        data = framed(request_bytes(flood(request_type, version, path, size), version))
        with StepsPerTurn() as steps:
            wire.feed(data)
            while not wire.transport.written and not wire.is_closed:
                await asyncio.sleep(0)
                steps.turn()
        wire.close()
        return steps.most

    if request_type is AlterClientQuotasRequest and path == ("entries", "entity"):
        return  # an answer repeats the entity, and encodes all of its elements in one go
    if request.node.callspec.params["broker"] == "refused" and request_type.api_key in REFUSED_AT_ONCE:
        return
    runner.run(answered(4 * CHECKS))  # warm up: compile what is compiled at the first use
    assert runner.run(answered(MANY)) < STEPS
