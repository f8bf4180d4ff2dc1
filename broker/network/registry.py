"""What this broker can be asked: one row per API, beside the handler that answers it.

`@api` marks a handler method with the API it answers and the versions it serves; `HandlerRegistry` collects the
marked methods of the handler objects that the composer built. Dispatch, the ApiVersions response, the README's
compatibility table and the per-API metrics all come from here, so nothing can be advertised that has no handler.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from protocol.api_keys import ApiKey
from protocol.messages import REQUEST_TYPES
from protocol.wire.schema import Request, Response

Reply = Response | None
"""What a handler gives back; None sends nothing (Produce with acks=0)."""

_METHOD_ATTRIBUTE = "__odradek_api__"
_F = TypeVar("_F", bound=Callable[..., Any])
_T = TypeVar("_T")

NOTHING: Final[frozenset[ApiKey]] = frozenset()
ANYTHING: Final = frozenset(ApiKey)
"""What may be taken up behind a request whose answer is outstanding; see `Waiting`."""


@dataclass(slots=True, eq=False)
class Waiting(Generic[_T]):
    """A request that has had all its effects, or has none; only its answer is outstanding.

    The connection takes up the requests behind it whose APIs are in `lets_pass`. `future` is cancelled when the client
    hangs up.

    With `effective`, the effects are complete only when that is done: until then nothing passes, nor is anything
    cancelled.
    """

    future: asyncio.Future[_T]
    lets_pass: frozenset[ApiKey] = ANYTHING
    effective: asyncio.Future[None] | None = None


class CloseConnection(Exception):
    """Raised by a handler when Kafka's answer to the request is to hang up; the message says why, for the log."""


@dataclass(frozen=True, slots=True)
class RequestContext:
    """Who asks, in which version, through which listener. Requests of one connection share it.

    `client_address` is the peer's IP address as text.
    """

    api_version: int
    client_id: str | None
    client_address: str
    listener_name: str
    principal: str = "User:ANONYMOUS"


class Handle(Protocol):
    """A handler: answers at once, or tells what is left to be done.

    An awaitable (a coroutine, a future) stands for effects that are not complete: its connection takes up no further
    request before it is done. `Waiting` lets some pass.
    """

    def __call__(self, context: RequestContext, request: Any, /) -> Reply | Awaitable[Reply] | Waiting[Any]: ...


@dataclass(frozen=True, slots=True)
class ApiMark:
    """The versions a handler serves, and the lowest it advertises (lower than served only for KAFKA-18659).

    `reads_only`: it changes nothing, so that its work may be cancelled when the client hangs up.
    """

    api_key: ApiKey
    min_version: int
    max_version: int
    advertised_from: int
    reads_only: bool


@dataclass(slots=True)
class RouteStatistics:
    """Counters of one API. Plain integers: read at scrape time, never locked."""

    requests: int = 0
    failures: int = 0
    total_time_s: float = 0.0


@dataclass(slots=True)
class Route:
    """One API with its handler. `name` is Kafka's name of the API, such as `ListOffsets`."""

    api_key: ApiKey
    name: str
    min_version: int
    max_version: int
    advertised_from: int
    reads_only: bool
    request_type: type[Request]
    handle: Handle
    statistics: RouteStatistics = field(default_factory=RouteStatistics)


class RequestKind(NamedTuple):
    """The requests of one connection that have the same in front of their body, apart from the correlation id.

    A client says the same in every request of an API, so that it has to be understood only once.
    """

    route: Route
    header: bytes
    """What is between correlation id and body."""
    body_at: int
    reply_head_bytes: int
    context: RequestContext


def api(
    api_key: ApiKey, *, versions: tuple[int, int], advertised_from: int | None = None, reads_only: bool = False
) -> Callable[[_F], _F]:
    """Mark a method as the handler of `api_key` for `versions` (both ends included)."""
    low, high = versions
    mark = ApiMark(api_key, low, high, low if advertised_from is None else advertised_from, reads_only)

    def attach(function: _F) -> _F:
        setattr(function, _METHOD_ATTRIBUTE, mark)
        return function

    return attach


def marks_of(handler_type: type) -> Iterator[tuple[str, ApiMark]]:
    """The (method name, mark) pairs of a handler class, for documents and tests that need no instance."""
    for name, member in vars(handler_type).items():
        mark = getattr(member, _METHOD_ATTRIBUTE, None)
        if mark is not None:
            yield name, mark


class HandlerRegistry:
    """Routes by API key. Two handlers for one API are a programming error (ValueError)."""

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
            self.routes[int(mark.api_key)] = Route(
                mark.api_key,
                request_type.__name__.removesuffix("Request"),
                mark.min_version,
                mark.max_version,
                mark.advertised_from,
                mark.reads_only,
                request_type,
                getattr(handler, method_name),
            )

    def __iter__(self) -> Iterator[Route]:
        """Routes in the order of their API keys."""
        return iter(sorted(self.routes.values(), key=lambda route: route.api_key))
