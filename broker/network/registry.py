"""The APIs that this broker serves: one row for each, with the handler that answers it.

`@api` marks a handler method with its API, the versions it serves and the right that it requires; `HandlerRegistry`
collects the marked methods of all handler objects. Dispatch, authorization, the ApiVersions response, the table in
docs/compatibility.md and the metrics of each API derive from it, so every advertised API has a handler and a right.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

from broker.network.shares import Split, arrays_of
from cluster.security.principal import ANONYMOUS, Principal
from protocol.api_keys import ApiKey
from protocol.errors import ErrorCode
from protocol.messages import REQUEST_TYPES, RESPONSE_TYPES
from protocol.value import Value, field, maker
from protocol.wire.schema import Request, Response
from protocol.wire.wire_types import SMALL_ELEMENTS

if TYPE_CHECKING:
    from broker.security.rights import Right

Reply = Response | None
"""The result of a handler, or None to send no reply (Produce with acks=0)."""

_METHOD_ATTRIBUTE = "__odradek_api__"
_HEAD = struct.Struct(">ii")
"""The head of a reply: its size and the correlation id."""
_FLEXIBLE_HEAD = struct.Struct(">iix")
"""The same head, with an empty set of tagged fields."""
LARGE_BYTES: Final = 16 << 20
"""A larger frame is always decoded in slices: even copying it to find out its number of elements takes long."""
START: Final = struct.Struct(">Ii")
"""The start of a request: API key and version as one number, then the correlation id."""
_F = TypeVar("_F", bound=Callable[..., Any])
_R = TypeVar("_R")
_T = TypeVar("_T")

NOTHING: Final[frozenset[ApiKey]] = frozenset()
ANYTHING: Final = frozenset(ApiKey)
"""Sets of APIs that may overtake a request whose answer is outstanding; see `Waiting`."""


class Waiting(Value, Generic[_T], frozen=False, eq=False):
    """A request whose effects are complete, or that has none; only its answer is outstanding.

    The connection continues with later requests whose APIs are in `lets_pass`. `future` is cancelled when the client
    disconnects.

    With `effective`, the effects are complete once that future is done; until then no request may overtake, and a
    disconnect cancels nothing.
    """

    future: asyncio.Future[_T]
    lets_pass: frozenset[ApiKey] = ANYTHING
    effective: asyncio.Future[None] | None = None


class Later(Value, Generic[_T], frozen=False, eq=False):
    """A `Waiting` without a future, for handlers that complete many requests at once. A future would cost a callback
    and an event-loop turn for each request.

    The handler calls `answer` once, after it has returned, with the response, or with a value that `translate` turns
    into the response. `answer` does not raise: if `translate` fails, the connection is closed. It must be called even
    if the client has disconnected.
    """

    lets_pass: frozenset[ApiKey] = ANYTHING
    translate: Callable[[Any], _T] | None = None
    parts: list[Any] | None = None
    """The encoded reply, once it exists. Set by the dispatcher, for the connection."""
    arrival: Any = field(init=False)
    """The dispatcher's record of the request."""
    _take: Callable[[Later[Any], Any], None] = field(init=False)

    def then(self, take: Callable[[Later[Any], Any], None]) -> None:
        """Set the callback that receives the outcome; `response` turns that into the response. Called by the
        dispatcher.
        """
        self._take = take

    def answer(self, outcome: Any) -> None:
        """Complete the request with the response, or with the value for `translate`."""
        self._take(self, outcome)

    def response(self, outcome: Any) -> _T:
        """Turn an outcome into the response. Raises what `translate` raises."""
        translate = self.translate
        response: _T = outcome if translate is None else translate(outcome)
        return response


make_later = maker(Later)


def complete_future(future: asyncio.Future[_T], make: Callable[[_R], _T], value: _R) -> None:
    """Complete a pending future with `make(value)`. If `make` raises, pass the error on to the connection."""
    if not future.done():
        try:
            future.set_result(make(value))
        except Exception as error:  # noqa: BLE001  the connection logs it
            future.set_exception(error)


class CloseConnection(Exception):
    """Raised by a handler to close the connection, as Kafka does in the same case; the message is the reason for the
    log.
    """


class RequestContext(Value, frozen=False, eq=False):
    """The client of a request, its API version and its listener. Requests of one kind on a connection share it, so it
    can serve as a key for cached facts about the client. If its API is `in_order`, a request has a separate context
    with its `correlation_id`.

    `client_address` is the peer's IP address as text.
    """

    api_version: int
    client_id: str | None
    client_address: str
    listener_name: str
    principal: Principal = ANONYMOUS
    security_protocol: str = "PLAINTEXT"
    correlation_id: int = -1
    refused_batches: dict[tuple[object, int, int], tuple[int, ErrorCode]] | None = None
    """State of a client that produces; see `RefusedBatches`."""


class Handle(Protocol):
    """A handler: returns the response, or an awaitable of it.

    Until an awaitable is done, the effects of the request are incomplete and its connection processes no further
    request. `Waiting` and `Later` let some requests overtake.
    """

    def __call__(
        self, context: RequestContext, request: Any, /
    ) -> Reply | Awaitable[Reply] | Waiting[Any] | Later[Any]: ...


class ApiMark(Value):
    """The versions a handler serves, and the lowest it advertises (lower than served only for KAFKA-18659). `right` is
    asked before the handler if there is an authorizer; see `broker.security.rights`.

    `reads_only`: its work may be cancelled when the client disconnects, because it changes nothing, or what it changes
    goes on by itself. `in_order`: each of its requests has a separate context with its `correlation_id`.

    A request of more than `at_once` elements is large: it is decoded in slices and, by one of the `splits`, handled in
    shares, so that it does not block the event loop. `whole` is the reason why a large request cannot be split; then
    the handler itself works in slices.

    `lazy` is the path of an array, such as `topics.partitions`: in a large request that is not split, this array and
    those that contain it may be a `LazyArray`. The handler may only iterate over it and take its length.
    """

    api_key: ApiKey
    min_version: int
    max_version: int
    advertised_from: int
    right: Right
    reads_only: bool
    in_order: bool
    splits: tuple[Split, ...]
    whole: str
    at_once: int
    lazy: str


class RouteStatistics(Value, frozen=False):
    """Counters of one API. Plain integers: read at scrape time, never locked."""

    requests: int = 0
    failures: int = 0
    total_time_s: float = 0.0


class Route(Value, frozen=False):
    """One API with its handler. `name` is Kafka's name of the API, such as `ListOffsets`."""

    api_key: ApiKey
    name: str
    min_version: int
    max_version: int
    advertised_from: int
    right: Right
    reads_only: bool
    in_order: bool
    splits: tuple[Split, ...]
    at_once: int
    lazy: frozenset[str]
    request_type: type[Request]
    handlers: object
    handle: Handle
    handle_large: Handle | None = None
    """The handler for large requests that are not split, if it differs from `handle`."""
    statistics: RouteStatistics = field(default_factory=RouteStatistics)


class RequestKind:
    """Requests of one connection whose headers are equal except for the correlation id.

    A client repeats the same header in every request of an API, so it is decoded only once.
    """

    __slots__ = (
        "body_at", "context", "decode", "encode", "handle", "header", "most_bytes", "most_elements", "reply_head",
        "route",
    )  # fmt: skip

    def __init__(
        self, route: Route, handle: Handle, header: bytes, body_at: int, context: RequestContext, at_once: int
    ) -> None:
        """`header` is the part between correlation id and body. A request of more than `at_once` elements is large."""
        version = context.api_version
        self.route = route
        self.handle = handle
        self.header = header
        self.body_at = body_at
        self.context = context
        self.decode = route.request_type.decoder(version)
        """Decodes a request from the position of its body in the frame; see `Message.decoder`."""
        self.most_bytes = -1 if route.in_order else LARGE_BYTES
        """Larger frames are decoded in slices right away."""
        self.most_elements = min(at_once, route.request_type.max_elements) + 1
        """A request with more elements is large."""
        self.encode = RESPONSE_TYPES[route.api_key].encoder(version)
        self.reply_head = _FLEXIBLE_HEAD if route.api_key.response_header_version(version) else _HEAD


def api(
    api_key: ApiKey,
    *,
    versions: tuple[int, int],
    right: Right,
    advertised_from: int | None = None,
    reads_only: bool = False,
    in_order: bool = False,
    splits: Iterable[Split] = (),
    whole: str = "",
    at_once: int = SMALL_ELEMENTS,
    lazy: str = "",
) -> Callable[[_F], _F]:
    """Mark a method as the handler of `api_key` for `versions` (both ends included); see `ApiMark`."""
    low, high = versions
    advertised = low if advertised_from is None else advertised_from
    mark = ApiMark(api_key, low, high, advertised, right, reads_only, in_order, tuple(splits), whole, at_once, lazy)

    def attach(function: _F) -> _F:
        setattr(function, _METHOD_ATTRIBUTE, mark)
        return function

    return attach


def _paths(path: str) -> frozenset[str]:
    """The path of an array, and the paths of all arrays that contain it."""
    names = path.split(".") if path else []
    return frozenset(".".join(names[: depth + 1]) for depth in range(len(names)))


def marks_of(handler_type: type) -> Iterator[tuple[str, ApiMark]]:
    """The (method name, mark) pairs of a handler class, for documentation and tests without an instance."""
    for name, member in vars(handler_type).items():
        mark = getattr(member, _METHOD_ATTRIBUTE, None)
        if mark is not None:
            yield name, mark


class HandlerRegistry:
    """Routes by API key. Two handlers for one API are a programming error (ValueError). So is a request array without a
    declared way to keep it from blocking the event loop.
    """

    def __init__(self, handlers: Iterable[object] = ()) -> None:
        self.routes: dict[int, Route] = {}
        for handler in handlers:
            self.add(handler)

    def add(self, handler: object) -> None:
        """Add every marked method of `handler`."""
        for method_name, mark in marks_of(type(handler)):
            if mark.api_key in self.routes:
                raise ValueError(f"two handlers for {mark.api_key.name}")
            request_type = REQUEST_TYPES[mark.api_key]
            if not request_type.min_version <= mark.min_version <= mark.max_version <= request_type.max_version:
                raise ValueError(f"{method_name} serves versions of {mark.api_key.name} that are not declared")
            split = {each.path.partition(".")[0] for each in mark.splits}
            if not mark.whole and not split.issuperset(arrays_of(request_type)):
                raise ValueError(f"{method_name} says of an array of {mark.api_key.name} neither a split nor `whole`")
            self.routes[int(mark.api_key)] = Route(
                mark.api_key,
                request_type.__name__.removesuffix("Request"),
                mark.min_version,
                mark.max_version,
                mark.advertised_from,
                mark.right,
                mark.reads_only,
                mark.in_order,
                mark.splits,
                mark.at_once,
                frozenset[str]().union(*map(_paths, (mark.lazy, *(split.path for split in mark.splits)))),
                request_type,
                handler,
                getattr(handler, method_name),
            )

    def __iter__(self) -> Iterator[Route]:
        """Routes in the order of their API keys."""
        return iter(sorted(self.routes.values(), key=lambda route: route.api_key))
