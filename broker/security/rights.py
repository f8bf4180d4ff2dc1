"""Rights: what its sender must be allowed to do before a request reaches its handler. `@api(..., right=...)` declares
them; they are asked only with an authorizer.

A right is a guard, a function of the handler object and a `ClientRequest`: a method of the handler's class, or one of
the classes below. It answers the request, or passes it on, completely or in part. The handler gets only permitted
items.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import Enum
from functools import partial
from operator import attrgetter
from typing import Any, ClassVar, Final, Generic, TypeVar

from broker.network.registry import CloseConnection, HandlerRegistry, Later, Reply, RequestContext, Route, Waiting
from broker.network.shares import SHARE, Split
from broker.security.access import Access, Client
from environment.contract import Clock
from environment.slices import Slices
from protocol.acl_types import AclOperation, ResourceType
from protocol.errors import ErrorCode
from protocol.value import Value, maker
from protocol.wire.encoded_items import with_items
from protocol.wire.schema import Response

Outcome = Reply | Awaitable[Reply] | Waiting[Any] | Later[Any]
"""The result of a handler."""
R = TypeVar("R")

DENIED: Final = {
    ResourceType.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ResourceType.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ResourceType.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ResourceType.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}
DENIAL_MESSAGES: Final = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "Topic authorization failed.",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "Group authorization failed.",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "Cluster authorization failed.",
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "Transactional Id authorization failed.",
}
"""Kafka's messages, for the responses that have one."""


class ClientRequest(Value, Generic[R], frozen=False, eq=False):
    """A request and its sender. `handle` passes a request on to the handler."""

    client: Client
    context: RequestContext
    request: R
    handle: Callable[[Any], Outcome]

    def proceed(self, results: str = "", refusals: Sequence[Any] = ()) -> Outcome:
        """Pass the request on as it is now. Refusals are appended to `results` of the response, unless that has an
        error itself.
        """
        if not refusals:
            return self.handle(self.request)
        return then(self.handle(self.request), partial(_append, self.context.api_version, results, refusals))

    def without(self, array: str, denied: Callable[[Any], bool], refusals: Sequence[Any], results: str) -> Outcome:
        """Pass the request on without the denied elements of `array`; see `proceed` for their refusals."""
        if refusals:
            setattr(self.request, array, [each for each in getattr(self.request, array) if not denied(each)])
        return self.proceed(results, refusals)

    def without_places(self, array: str, refusals: Mapping[int, Any], results: str) -> Outcome:
        """Pass the request on without the elements of `array` at the places in `refusals`; these become the results
        there.
        """
        if not refusals:
            return self.proceed()
        asked = getattr(self.request, array)
        setattr(self.request, array, [each for place, each in enumerate(asked) if place not in refusals])

        def merge(response: Any) -> Any:
            others = iter(getattr(response, results))
            merged = [refusals[place] if place in refusals else next(others) for place in range(len(asked))]
            setattr(response, results, merged)
            return response

        return then(self.proceed(), merge)


make_client_request = maker(ClientRequest)


class Unasked(Enum):
    """Why an API needs no right."""

    EVERYBODY = "every client may use it"
    CHECKED_BY_HANDLER = "its handler asks `Access` itself"


EVERYBODY: Final = Unasked.EVERYBODY
CHECKED_BY_HANDLER: Final = Unasked.CHECKED_BY_HANDLER

Guard = Callable[[Any, ClientRequest[Any]], Outcome]
Right = Unasked | Guard
Refuse = Callable[[ClientRequest[Any], ErrorCode], Response]
"""Builds the response that refuses a whole request."""


class OnCluster:
    """Any one of these operations on the cluster (KIP-1037)."""

    def __init__(self, *operations: AclOperation, refusal: Refuse) -> None:
        self.operations = operations
        self._refusal = refusal

    def __call__(self, _: object, asked: ClientRequest[Any]) -> Outcome:
        last = self.operations[-1]
        if any(asked.client.may_in_cluster(each, logs_denial=each is last) for each in self.operations):
            return asked.proceed()
        return self._refusal(asked, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)


class _OnNamed:
    """An operation on the resource that a field names."""

    resource_type: ClassVar[ResourceType]
    field: ClassVar[str]

    def __init__(self, operation: AclOperation, refusal: Refuse) -> None:
        self._operation = operation
        self._refusal = refusal

    def __call__(self, _: object, asked: ClientRequest[Any]) -> Outcome:
        if asked.client.may(self._operation, self.resource_type, getattr(asked.request, self.field)):
            return asked.proceed()
        return self._refusal(asked, DENIED[self.resource_type])


class OnGroup(_OnNamed):
    """An operation on the group of the request."""

    resource_type = ResourceType.GROUP
    field = "group_id"


class OnTransactionalId(_OnNamed):
    """An operation on the transactional id of the request."""

    resource_type = ResourceType.TRANSACTIONAL_ID
    field = "transactional_id"


class OnTopics:
    """An operation on each topic of an array; `refusal` builds the result of a topic without the right.

    `name` is the field with the topic's name. `unless`: this operation on the cluster is enough, too.
    """

    def __init__(
        self,
        operation: AclOperation,
        refusal: Callable[[Any, ErrorCode], Any],
        *,
        array: str = "topics",
        results: str = "topics",
        name: str = "name",
        unless: AclOperation | None = None,
    ) -> None:
        self._operation = operation
        self._refusal = refusal
        self._array = array
        self._results = results
        self._name_of = attrgetter(name)
        self._unless = unless

    def __call__(self, _: object, asked: ClientRequest[Any]) -> Outcome:
        if self._unless is not None and asked.client.may_in_cluster(self._unless, logs_denial=False):
            return asked.proceed()
        name_of, topics = self._name_of, getattr(asked.request, self._array)
        denied = asked.client.denied(self._operation, ResourceType.TOPIC, list(map(name_of, topics)))
        if not denied:
            return asked.proceed()
        code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        refusals = [self._refusal(topic, code) for topic in topics if name_of(topic) in denied]
        return asked.without(self._array, lambda topic: name_of(topic) in denied, refusals, self._results)


class All:
    """All of these rights, asked in this order."""

    def __init__(self, *rights: Guard) -> None:
        self._rights = rights

    def __call__(self, handlers: object, asked: ClientRequest[Any]) -> Outcome:
        handle = asked.handle
        for right in reversed(self._rights):
            handle = partial(_ask, right, handlers, asked, handle)
        return handle(asked.request)


def _ask(
    right: Guard, handlers: object, asked: ClientRequest[Any], handle: Callable[[Any], Outcome], request: Any
) -> Outcome:
    asked.request, asked.handle = request, handle
    return right(handlers, asked)


class InShares:
    """A right that is asked in shares, for an API that handles a large request as a whole."""

    def __init__(self, right: Guard, array: str, results: str, response: Callable[[], Response]) -> None:
        """`array` and `results` are the paths in request and response; `response` makes an empty response."""
        self._right = right
        self._array = array
        self._results = results
        self._response = response

    def __call__(self, handlers: object, asked: ClientRequest[Any]) -> Outcome:
        return self._right(handlers, asked)

    async def ask_in_shares(self, handlers: object, asked: ClientRequest[Any], clock: Clock) -> Reply:
        """Respond like right and handler together, in slices, with the refusals after the other results."""
        slices, size = Slices(clock), clock.elements_at_once(SHARE)
        array, results = self._array.partition(".")[0], self._results.partition(".")[0]
        request, refused = asked.request, self._response()
        asked.request = request.replace(**{array: []})

        def allow(share: Any) -> Response:
            _join(asked.request, share, self._array)
            return self._response()

        for share in Split(self._array).shares(request, size, slices.should_yield):
            if share is not None:
                refusal = self._right(handlers, asked.replace(request=share, handle=allow))
                assert isinstance(refusal, Response), "a right waits for something"
                _join(refused, refusal, self._results)
            if slices.should_yield():
                await slices.pause()
        outcome = asked.proceed(results, getattr(refused, results))
        if isinstance(outcome, Waiting):
            outcome = outcome.future
        response: Any = await outcome if isinstance(outcome, Awaitable) else outcome
        return response  # type: ignore[no-any-return]


def _join(whole: Any, part: Any, path: str) -> None:
    """Append the elements of a part; a topic that was split between the parts is joined."""
    outer, _, inner = path.partition(".")
    items, more = getattr(whole, outer), getattr(part, outer)
    if inner and items and more and items[-1].name == more[0].name:
        getattr(items[-1], inner).extend(getattr(more[0], inner))
        more = more[1:]
    items.extend(more)


def _append(version: int, results: str, refusals: Sequence[Any], response: Any) -> Any:
    if response is None:
        denied = ErrorCode.TOPIC_AUTHORIZATION_FAILED.name
        raise CloseConnection(f"a produce request with acks=0 failed with {denied}")
    if not getattr(response, "error_code", 0):
        array = getattr(response, results)
        setattr(response, results, with_items(array, type(refusals[0]), type(response), version, refusals))
    return response


def then(outcome: Outcome, change: Callable[[Any], Reply]) -> Outcome:
    """Apply `change` to the response, now or when it arrives. `change` may raise whatever a handler may raise."""
    if isinstance(outcome, Later):
        changed: Later[Any] = Later(outcome.lets_pass, lambda value: change(outcome.response(value)))
        outcome.then(lambda _, value: changed.answer(value))
        return changed
    if isinstance(outcome, Waiting):
        answer: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        outcome.future.add_done_callback(partial(_pass_on, answer, change))
        answer.add_done_callback(partial(_abandon, outcome.future))
        return Waiting(answer, outcome.lets_pass, outcome.effective)
    if isinstance(outcome, Awaitable):
        return _later(outcome, change)
    return change(outcome)


async def _later(outcome: Awaitable[Reply], change: Callable[[Any], Reply]) -> Reply:
    return change(await outcome)


def _pass_on(answer: asyncio.Future[Reply], change: Callable[[Any], Reply], done: asyncio.Future[Any]) -> None:
    if answer.done():
        return
    if done.cancelled():
        answer.cancel()
        return
    error = done.exception()
    if error is not None:
        answer.set_exception(error)
        return
    try:
        answer.set_result(change(done.result()))
    except Exception as mistake:  # noqa: BLE001  whoever awaits the answer logs it
        answer.set_exception(mistake)


def _abandon(work: asyncio.Future[Any], answer: asyncio.Future[Reply]) -> None:
    if answer.cancelled():
        work.cancel()


def install_rights(registry: HandlerRegistry, access: Access, clock: Clock) -> None:
    """Ask each right before its handler."""
    for route in registry:
        if not isinstance(route.right, Unasked):
            _install(route, route.right, access, clock)


def _install(route: Route, right: Guard, access: Access, clock: Clock) -> None:
    handlers, handle = route.handlers, route.handle

    def asked(context: RequestContext, request: Any) -> ClientRequest[Any]:
        client = access.client(context, route.name)
        return make_client_request(client, context, request, partial(handle, context))

    route.handle = lambda context, request: right(handlers, asked(context, request))
    if isinstance(right, InShares):
        route.handle_large = lambda context, request: right.ask_in_shares(handlers, asked(context, request), clock)
