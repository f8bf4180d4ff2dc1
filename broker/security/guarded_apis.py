"""Assigns a guard to each API, and installs them. An API without a rule is a programming error."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, Protocol

from broker.environment.contract import Clock
from broker.network.registry import CloseConnection, Handle, HandlerRegistry, Reply, RequestContext, Route, Waiting
from broker.network.shares import SHARE, Split
from broker.network.slices import Slices
from broker.security.access import Access, Client
from broker.security.guards import configs, groups, records, transactions
from broker.security.guards.cluster_wide import CLUSTER_RIGHTS, guard_cluster
from broker.security.guards.topics import TopicGuards
from broker.security.replies import Outcome, Proceed
from cluster.metadata_image import MetadataImage
from protocol.api_keys import ApiKey
from protocol.messages.configs import DescribeConfigsResponse
from protocol.messages.produce import ProduceResponse
from protocol.wire.encoded_items import with_items
from protocol.wire.schema import Response


class Guard(Protocol):
    """Runs before a handler: answers the request, or passes it on to `proceed`, completely or in part."""

    def __call__(self, client: Client, context: RequestContext, request: Any, proceed: Proceed, /) -> Outcome: ...


GUARDS: Final[dict[ApiKey, Guard]] = {
    ApiKey.PRODUCE: records.guard_produce,
    ApiKey.LIST_OFFSETS: records.guard_list_offsets,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: records.guard_epochs,
    ApiKey.DELETE_RECORDS: records.guard_delete_records,
    ApiKey.DESCRIBE_PRODUCERS: records.guard_describe_producers,
    ApiKey.OFFSET_COMMIT: groups.guard_commit,
    ApiKey.OFFSET_FETCH: groups.guard_fetch,
    ApiKey.OFFSET_DELETE: groups.guard_delete_offsets,
    ApiKey.JOIN_GROUP: groups.guard_join,
    ApiKey.SYNC_GROUP: groups.guard_sync,
    ApiKey.HEARTBEAT: groups.guard_heartbeat,
    ApiKey.LEAVE_GROUP: groups.guard_leave,
    ApiKey.DESCRIBE_GROUPS: groups.guard_describe,
    ApiKey.LIST_GROUPS: groups.guard_list,
    ApiKey.DELETE_GROUPS: groups.guard_delete,
    ApiKey.FIND_COORDINATOR: transactions.guard_find,
    ApiKey.INIT_PRODUCER_ID: transactions.guard_init,
    ApiKey.ADD_OFFSETS_TO_TXN: transactions.guard_add_offsets,
    ApiKey.END_TXN: transactions.guard_end,
    ApiKey.TXN_OFFSET_COMMIT: transactions.guard_commit_offsets,
    ApiKey.DESCRIBE_TRANSACTIONS: transactions.guard_describe,
    ApiKey.LIST_TRANSACTIONS: transactions.guard_list,
    ApiKey.DESCRIBE_CONFIGS: configs.guard_describe,
    ApiKey.ALTER_CONFIGS: configs.guard_alter,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: configs.guard_incremental_alter,
}
"""Guards that need only the request."""

IN_SHARES: Final[dict[ApiKey, tuple[str, str, Callable[[], Response]]]] = {
    ApiKey.PRODUCE: (
        "topic_data.partition_data",
        "responses.partition_responses",
        lambda: ProduceResponse(responses=[]),
    ),
    ApiKey.DESCRIBE_CONFIGS: (
        "resources",
        "results",
        lambda: DescribeConfigsResponse(throttle_time_ms=0, results=[]),
    ),
}
"""APIs that handle a large request as a whole, but whose guards can work in shares: the arrays of request and response,
and an empty response.
"""

UNGUARDED: Final = frozenset(
    {
        ApiKey.API_VERSIONS,
        ApiKey.DESCRIBE_CLUSTER,  # returns authorized operations
        ApiKey.METADATA,  # checks each topic
        ApiKey.FETCH,  # checks once it knows the partitions of its session
        ApiKey.CREATE_DELEGATION_TOKEN,  # checks rights for other users' tokens
        ApiKey.RENEW_DELEGATION_TOKEN,  # checks for owners and renewers
        ApiKey.EXPIRE_DELEGATION_TOKEN,
        ApiKey.DESCRIBE_DELEGATION_TOKEN,  # checks each token
        ApiKey.SASL_HANDSHAKE,  # authenticates the client
        ApiKey.SASL_AUTHENTICATE,
    }
)
"""APIs for all clients, or with checks in their handlers."""


def install_guards(
    registry: HandlerRegistry,
    access: Access,
    image: Callable[[], MetadataImage],
    is_controller: Callable[[], bool],
    may_delete_topics: Callable[[], bool],
    clock: Clock,
) -> None:
    """Put the guards before the handlers. See `TopicGuards` for the other arguments."""
    topics = TopicGuards(image, is_controller, may_delete_topics)
    guards: dict[ApiKey, Guard] = {
        **GUARDS,
        ApiKey.ADD_PARTITIONS_TO_TXN: transactions.AddPartitionsGuard(image).guard,
        ApiKey.CREATE_TOPICS: topics.create,
        ApiKey.DELETE_TOPICS: topics.delete,
        ApiKey.CREATE_PARTITIONS: topics.grow,
        **{key: partial(guard_cluster, key=key) for key in CLUSTER_RIGHTS},
    }
    for route in registry:
        if route.api_key in guards:
            if route.api_key in IN_SHARES:
                route.handle_large = _LargeGuard(route, guards[route.api_key], access, clock)
            _install(route, guards[route.api_key], access)
        elif route.api_key not in UNGUARDED:
            raise ValueError(f"nothing says who may use {route.name}")


def _install(route: Route, guard: Guard, access: Access) -> None:
    handle, name = route.handle, route.name

    def guarded(context: RequestContext, request: Any) -> Outcome:
        return guard(access.client(context, name), context, request, partial(handle, context))

    route.handle = guarded


class _LargeGuard:
    """Runs before a handler that processes a large request as a whole. Checks the request in shares and in slices."""

    def __init__(self, route: Route, guard: Guard, access: Access, clock: Clock) -> None:
        self._handle: Handle = route.handle
        self._name = route.name
        self._asked, self._answered, self._nothing = IN_SHARES[route.api_key]
        self._guard = guard
        self._access = access
        self._clock = clock

    async def __call__(self, context: RequestContext, request: Any) -> Reply:
        """Respond like guard and handler together, with the refusals after the other results."""
        slices, client = Slices(self._clock), self._access.client(context, self._name)
        size = self._clock.elements_at_once(SHARE)
        refused, allowed = self._nothing(), request.replace(**{self._asked.partition(".")[0]: []})

        def allow(share: Any) -> Response:
            _put_behind(allowed, share, self._asked)
            return self._nothing()

        for share in Split(self._asked).shares(request, size, slices.should_yield):
            if share is not None:
                refusal = self._guard(client, context, share, allow)
                assert isinstance(refusal, Response), f"the guard of {self._name} waits for something"
                _put_behind(refused, refusal, self._answered)
            if slices.should_yield():
                await slices.pause()
        return await self._handled(context, allowed, refused)

    async def _handled(self, context: RequestContext, allowed: Any, refused: Response) -> Reply:
        outcome = self._handle(context, allowed)
        if isinstance(outcome, Waiting):
            outcome = outcome.future
        response: Any = await outcome if isinstance(outcome, Awaitable) else outcome
        array = self._answered.partition(".")[0]
        more = getattr(refused, array)
        if response is None and more:
            raise CloseConnection("a produce request with acks=0 was refused in part")
        if more:
            answers = getattr(response, array)
            joined = with_items(answers, type(more[0]), type(response), context.api_version, more)
            setattr(response, array, joined)
        return response  # type: ignore[no-any-return]


def _put_behind(whole: Any, part: Any, path: str) -> None:
    """Append the elements of a part; a topic that was split between the parts is joined."""
    outer, _, inner = path.partition(".")
    items, more = getattr(whole, outer), getattr(part, outer)
    if inner and items and more and items[-1].name == more[0].name:
        getattr(items[-1], inner).extend(getattr(more[0], inner))
        more = more[1:]
    items.extend(more)
