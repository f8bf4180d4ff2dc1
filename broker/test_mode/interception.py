"""Stands before the handlers of a broker under test: keeps a tape of requests, and injects faults.

It replaces the handlers in the registry before the first client connects. A broker that no test started has none of it.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final, cast

from broker.network.registry import (
    CloseConnection,
    Handle,
    HandlerRegistry,
    Later,
    Reply,
    RequestContext,
    Route,
    Waiting,
)
from broker.replication.fetch_session import FetchSessionCache, is_from_follower
from broker.test_mode.broken_replies import BrokenReplies
from broker.test_mode.error_answers import ERROR_FIELDS, error_response
from broker.test_mode.fault_rules import Fault, FaultError, FaultRule
from broker.test_mode.record_faults import changed, kept, second_arrival
from broker.test_mode.touched_resources import TopicName, reduced
from cluster.security.principal import Principal
from environment.contract import Clock
from protocol.api_keys import ApiKey
from protocol.errors import ErrorCode
from protocol.messages.fetch import FetchRequest, FetchResponse
from protocol.messages.metadata import MetadataRequest, MetadataResponse
from protocol.messages.produce import ProduceRequest
from protocol.uuids import Uuid
from protocol.value import Value
from protocol.wire.encode_compiler import EncodedItems
from protocol.wire.schema import Request, Response, Struct

CONTROL: Final = Principal("User", "odradek-control")
"""The principal of the control API, whose requests are neither on the tape nor hit by faults. A broker under test has
it among its super.users.
"""
TAPE_REQUESTS: Final = 2_000
"""Most requests on the tape; older ones are dropped."""
SHOWN_ELEMENTS: Final = 20
"""Elements of an array that the tape shows."""
SHOWN_BYTES: Final = 200
DECODED_ELEMENTS: Final = 1_000
"""A response with more elements that are already encoded is not decoded again for the tape or a fault."""

_SPOILED: Final = frozenset({ApiKey.FETCH, ApiKey.METADATA})
"""APIs that are handled although a fault refuses them: a fetch session goes on, and a client learns the brokers."""
_BETWEEN_BROKERS: Final = frozenset((
    ApiKey.LEADER_AND_ISR, ApiKey.STOP_REPLICA, ApiKey.UPDATE_METADATA, ApiKey.CONTROLLED_SHUTDOWN,
    ApiKey.ALTER_PARTITION, ApiKey.ALLOCATE_PRODUCER_IDS, ApiKey.WRITE_TXN_MARKERS,
))  # fmt: skip
_OF_PARTITIONS: Final = frozenset({"topic", "partition"})
"""Selectors that may match a part of a request."""

Ended = Callable[[Reply], None]
"""Called with the response of a request, once it is there."""


class _Hit(Value):
    """A request that a fault hits. `whole` names all its partitions: a Fetch may name only changes to its session."""

    rule: FaultRule
    handle: Handle
    context: RequestContext
    request: Request
    whole: Request

    @property
    def names_partitions(self) -> bool:
        """Whether the fault may be about a part of the request."""
        return bool(self.rule.fault.selectors.keys() & _OF_PARTITIONS)

    def spares(self, topic: str | None, partition: int | None) -> bool:
        """Whether a partition is served."""
        return not self.rule.touches(topic, partition)


class Interception:
    """Owns the tape and the faults of one broker."""

    def __init__(
        self,
        registry: HandlerRegistry,
        replies: BrokenReplies,
        sessions: FetchSessionCache,
        topic_name: TopicName,
        clock: Clock,
    ) -> None:
        self._replies = replies
        self._sessions = sessions
        self._topic_name = topic_name
        self._clock = clock
        self._registry = registry
        self._tape: deque[dict[str, Any]] = deque(maxlen=TAPE_REQUESTS)
        self._rules: dict[ApiKey, list[FaultRule]] = {}
        self._numbers = itertools.count(1)
        for route in registry:
            route.handle = partial(self._handle, route, route.handle)
            if route.handle_large is not None:
                route.handle_large = partial(self._handle, route, route.handle_large)

    # -- what tests ask for --------------------------------------------------------------------------------------------

    def add(self, given: Mapping[str, Any]) -> FaultRule:
        """Set a fault. Raises FaultError."""
        fault = Fault.of(given, lambda api_key: int(api_key) in self._registry.routes)
        rule = FaultRule(next(self._numbers), fault)
        self._rules.setdefault(fault.api, []).append(rule)
        return rule

    def remove(self, number: int | None) -> None:
        """Remove a fault, or all of them. Raises FaultError for a number that no fault has."""
        if number is not None and all(rule.number != number for rule in self.rules()):
            raise FaultError(f"no fault has the id {number}")
        for api_key, rules in list(self._rules.items()):
            left = [rule for rule in rules if number is not None and rule.number != number]
            if left:
                self._rules[api_key] = left
            else:
                del self._rules[api_key]

    def rules(self) -> list[FaultRule]:
        """All faults, oldest first."""
        return sorted((rule for rules in self._rules.values() for rule in rules), key=lambda rule: rule.number)

    def tape(self, api: str | None = None, client_id: str | None = None) -> list[dict[str, Any]]:
        """The last requests, oldest first, as JSON."""
        return [
            each
            for each in self._tape
            if (api is None or each["api"] == api) and (client_id is None or each["client_id"] == client_id)
        ]

    # -- every request -------------------------------------------------------------------------------------------------

    def _handle(self, route: Route, handle: Handle, context: RequestContext, request: Request) -> Any:
        if context.principal is CONTROL:
            return handle(context, request)
        hit = self._hit(route.api_key, handle, context, request)
        if _is_between_brokers(route.api_key, request):
            return handle(context, request) if hit is None else self._faulty(hit, _not_shown)
        entry: dict[str, Any] = {
            "api": route.name,
            "version": context.api_version,
            "client_id": context.client_id,
            "principal": str(context.principal),
            "address": context.client_address,
            "listener": context.listener_name,
            "time_ms": self._clock.now_ms(),
            "request": plain(request),
            "response": None,
            "duration_ms": None,
            "fault": None if hit is None else hit.rule.number,
        }
        self._tape.append(entry)
        ended = partial(self._ended, entry, context.api_version, self._clock.monotonic_s())
        return _watched(handle(context, request), ended) if hit is None else self._faulty(hit, ended)

    def _ended(self, entry: dict[str, Any], version: int, began_s: float, response: Reply) -> None:
        entry["duration_ms"] = round((self._clock.monotonic_s() - began_s) * 1000, 3)
        entry["response"] = None if response is None else plain(_decoded(response, version))

    def _hit(self, api_key: ApiKey, handle: Handle, context: RequestContext, request: Request) -> _Hit | None:
        """The first fault that hits a request, if any."""
        rules = self._rules.get(api_key)
        if not rules:
            return None
        if isinstance(request, ProduceRequest):
            request = kept(request)
        whole = self._with_session(request)
        hitting = (rule for rule in rules if rule.hits_request(context, whole, self._topic_name))
        rule = next(hitting, None)
        return None if rule is None else _Hit(rule, handle, context, request, whole)

    def _with_session(self, request: Request) -> Request:
        """The request; an incremental Fetch with the partitions of its session."""
        if not isinstance(request, FetchRequest) or not request.session_id:
            return request
        held = [
            FetchRequest.FetchTopic(
                topic=each.topic or "",
                topic_id=each.topic_id,
                partitions=[
                    FetchRequest.FetchPartition(
                        partition=each.partition,
                        fetch_offset=each.fetch_offset,
                        partition_max_bytes=each.max_bytes,
                    )
                ],
            )
            for each in self._sessions.partitions_of(request.session_id)
        ]
        return request.replace(topics=[*request.topics, *held])

    # -- faults --------------------------------------------------------------------------------------------------------

    def _faulty(self, hit: _Hit, ended: Ended) -> Any:
        """Handle a request that a fault hits."""
        fault = hit.rule.fault
        if fault.api in _SPOILED and fault.action == "error":
            if isinstance(hit.request, FetchRequest):
                hit = hit.replace(request=hit.request.replace(max_wait_ms=0))
            return self._spoil(hit, ended)
        match fault.action:
            case "close" if not fault.after:
                raise CloseConnection(f"fault {hit.rule.number}: close")
            case "hang" if not fault.after:
                return asyncio.get_running_loop().create_future()
            case "error" if not fault.after:
                return _watched(self._refuse(hit), ended)
            case "half" | "twice":
                self._replies.break_next(fault.action, f"fault {hit.rule.number}: {fault.action}")
            case "double" | "corrupt" | "unknown_schema":
                return self._change_records(hit, ended)
        return self._spoil(hit, ended)

    def _refuse(self, hit: _Hit) -> Any:
        """Answer an error for the partitions of the fault; handle the others."""
        refused = reduced(hit.whole, self._topic_name, hit.rule.touches)
        rest = reduced(hit.request, self._topic_name, hit.spares)
        error = self._error(hit, hit.whole if refused is None else refused)
        if rest is None or refused is None or _is_whole(error) or not hit.names_partitions:
            return error
        return _joined(hit.handle(hit.context, rest), error)

    async def _spoil(self, hit: _Hit, ended: Ended) -> Reply:
        """Delay a request, or let it take effect and spoil its answer."""
        fault = hit.rule.fault
        if fault.action == "delay" and not fault.after:
            await asyncio.sleep(fault.delay_ms / 1000)
        response = await resolved(hit.handle(hit.context, hit.request))
        match fault.action:
            case "delay" if fault.after:
                await asyncio.sleep(fault.delay_ms / 1000)
            case "close":
                raise CloseConnection(f"fault {hit.rule.number}: close")
            case "hang":
                await asyncio.get_running_loop().create_future()
            case "throttle" if response is not None:
                cast("Any", response).throttle_time_ms = fault.delay_ms
            case "error" if response is not None:
                response = self._spoiled(hit, response)
        ended(response)
        return response

    async def _change_records(self, hit: _Hit, ended: Ended) -> Reply:
        """Change the records of an answer, or append those of a request again. If there are none, it is not a hit."""
        rule, has_records = hit.rule, False
        rule.open_hit()
        try:
            response = await resolved(hit.handle(hit.context, hit.request))
            if isinstance(response, FetchResponse):
                has_records = changed(response, self._topic_name, rule.touches, rule.fault.action)
            elif isinstance(hit.whole, ProduceRequest):
                again = second_arrival(hit.whole, self._topic_name, rule.touches)
                has_records = again is not None
                if again is not None:
                    await resolved(hit.handle(hit.context, again))
        finally:
            rule.close_hit(counts=has_records)
        ended(response)
        return response

    def _spoiled(self, hit: _Hit, response: Response) -> Response:
        """The response with the error for the partitions of the fault."""
        response, whole = _decoded(response, hit.context.api_version), hit.whole
        if isinstance(whole, MetadataRequest) and isinstance(response, MetadataResponse) and not whole.topics:
            named = [MetadataRequest.MetadataRequestTopic(name=each.name) for each in response.topics]
            whole = whole.replace(topics=named)  # of all topics
        refused = reduced(whole, self._topic_name, hit.rule.touches)
        error = self._error(hit, whole if refused is None else refused)
        rest = reduced(response, self._topic_name, hit.spares)
        if _is_whole(error):
            return error
        if hit.rule.fault.api in _SPOILED:
            array = "responses" if isinstance(response, FetchResponse) else "topics"
            return _merged(response.replace(**{array: []}) if rest is None else rest, error)
        return error if rest is None or not hit.names_partitions else _merged(rest, error)

    def _error(self, hit: _Hit, request: Request) -> Response:
        """The answer with the error. Closes the connection where there is none, as Kafka does with acks=0."""
        fault, number = hit.rule.fault, hit.rule.number
        message = fault.message or f"Injected by fault {number}"
        try:
            return error_response(request, hit.context.api_version, int(fault.error), message)
        except ValueError as error:
            raise CloseConnection(f"fault {number}: {error}") from error


def _not_shown(_response: Reply) -> None:
    """Requests between brokers are not on the tape."""


def _is_between_brokers(api_key: ApiKey, request: Request) -> bool:
    """Whether only brokers send such a request; the tape shows clients."""
    return api_key in _BETWEEN_BROKERS or (isinstance(request, FetchRequest) and is_from_follower(request))


def _is_whole(error: Response) -> bool:
    """Whether the error is that of the whole response: this version has no other place for it."""
    return bool(getattr(error, "error_code", 0))


def _watched(reply: Any, ended: Ended) -> Any:
    """The reply of a handler, with `ended` called once its response is there."""
    if reply is None or isinstance(reply, Response):
        ended(reply)
        return reply
    if isinstance(reply, Later):
        translate = reply.translate

        def translated(outcome: Any) -> Any:
            response = outcome if translate is None else translate(outcome)
            ended(response)
            return response

        reply.translate = translated
        return reply
    if isinstance(reply, Waiting):
        reply.future.add_done_callback(partial(_ended_future, ended))
        return reply
    return _watched_work(reply, ended)


def _ended_future(ended: Ended, done: asyncio.Future[Any]) -> None:
    if not done.cancelled() and done.exception() is None:
        ended(done.result())


async def _watched_work(reply: Awaitable[Reply], ended: Ended) -> Reply:
    response = await reply
    ended(response)
    return response


async def resolved(reply: Any) -> Reply:
    """The response of any reply of a handler."""
    if isinstance(reply, Later):
        answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        reply.then(lambda later, outcome: answered.set_result(later.response(outcome)))
        return cast("Reply", await answered)
    if isinstance(reply, Waiting):
        return cast("Reply", await reply.future)
    if reply is None or isinstance(reply, Response):
        return reply
    return cast("Reply", await reply)


async def _joined(reply: Any, error: Response) -> Reply:
    response = await resolved(reply)
    return None if response is None else _merged(response, error)


def _merged(response: Response, error: Response) -> Response:
    """The response with the elements of `error` added to its arrays."""
    arrays = {
        name: [*getattr(response, name), *value]
        for name in response.declared_fields
        if isinstance(value := getattr(error, name), list)
    }
    return response.replace(**arrays)


def _decoded(response: Response, version: int) -> Response:
    """The response with arrays that are encoded already turned back, unless they are long."""
    return type(response).decode(response.to_bytes(version), version) if _holds_encoded(response) else response


def _holds_encoded(value: Any) -> bool:
    if isinstance(value, EncodedItems):
        return len(value) <= DECODED_ELEMENTS
    if isinstance(value, Struct):
        return any(_holds_encoded(getattr(value, name)) for name in value.declared_fields)
    return type(value) is list and any(_holds_encoded(each) for each in value[:DECODED_ELEMENTS])


def plain(value: Any) -> Any:
    """A message as JSON: bytes as their number and their start, long arrays cut."""
    if isinstance(value, Struct):
        return {name: plain(getattr(value, name)) for name in value.declared_fields}
    if isinstance(value, EncodedItems):
        return f"... {len(value)} in all"
    if isinstance(value, list):
        shown = [plain(each) for each in value[:SHOWN_ELEMENTS]]
        return shown if len(shown) == len(value) else [*shown, f"... {len(value)} in all"]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, bytes | bytearray | memoryview) and not isinstance(value, Uuid):
        return {"bytes": len(value), "start": bytes(value[:SHOWN_BYTES]).hex()}
    return str(value)


def errors_in(described: Any) -> list[str]:
    """The names of the errors in a response of the tape, each once."""
    found: dict[str, None] = {}

    def walk(value: Any) -> None:
        if isinstance(value, dict):
            for name, each in value.items():
                if name in ERROR_FIELDS and each:
                    found[ErrorCode.of(each).name] = None
                else:
                    walk(each)
        elif isinstance(value, list):
            for each in value:
                walk(each)

    walk(described)
    return list(found)
