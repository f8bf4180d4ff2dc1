"""Which guard stands before which API, and their installation. An API without a rule is a programming error."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, Protocol

from broker.network.registry import HandlerRegistry, RequestContext, Route
from broker.security.access import Access, Client
from broker.security.guards import configs, groups, records, transactions
from broker.security.guards.cluster_wide import CLUSTER_RIGHTS, guard_cluster
from broker.security.guards.topics import TopicGuards
from broker.security.replies import Outcome, Proceed
from cluster.metadata_image import MetadataImage
from protocol.api_keys import ApiKey


class Guard(Protocol):
    """Stands before a handler: answers the request, or has it handled with `proceed`, as a whole or in part."""

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
"""Guards that need nothing but the request."""

UNGUARDED: Final = frozenset(
    {
        ApiKey.API_VERSIONS,
        ApiKey.DESCRIBE_CLUSTER,  # tells authorized operations
        ApiKey.METADATA,  # asks on its way
        ApiKey.FETCH,  # asks when it knows the partitions of its session
        ApiKey.CREATE_DELEGATION_TOKEN,  # asks for other users' tokens
        ApiKey.RENEW_DELEGATION_TOKEN,  # for who owns or renews one
        ApiKey.EXPIRE_DELEGATION_TOKEN,
        ApiKey.DESCRIBE_DELEGATION_TOKEN,  # asks for each token
        ApiKey.SASL_HANDSHAKE,  # says who the client is
        ApiKey.SASL_AUTHENTICATE,
    }
)
"""APIs for everybody, or whose handlers ask themselves."""


def install_guards(
    registry: HandlerRegistry,
    access: Access,
    image: Callable[[], MetadataImage],
    is_controller: Callable[[], bool],
    may_delete_topics: Callable[[], bool],
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
            _install(route, guards[route.api_key], access)
        elif route.api_key not in UNGUARDED:
            raise ValueError(f"nothing says who may use {route.name}")


def _install(route: Route, guard: Guard, access: Access) -> None:
    handle, name = route.handle, route.name

    def guarded(context: RequestContext, request: Any) -> Outcome:
        return guard(access.client(context, name), context, request, partial(handle, context))

    route.handle = guarded
