"""Access according to access control lists, and the log of decisions."""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Final

from broker.network.registry import RequestContext
from broker.security.access import SUPPORTED, Access, Client, host_address
from cluster.security.acl_rules import AclRules
from protocol.acl_types import AclOperation, PatternType, ResourceType, title

logger = logging.getLogger("kafka.authorizer.logger")

MOST_REMEMBERED_CLIENTS: Final = 4096
_NONE: Final[frozenset[str]] = frozenset()
_TRACE: Final = 5
"""The level for messages that Kafka logs at TRACE."""


class AclAccess(Access):
    """Access according to access control lists."""

    is_open = False

    def __init__(self, rules: AclRules) -> None:
        self._rules = rules
        self._clients: dict[RequestContext, ListedClient] = {}
        """By request context, which stays the same for the whole connection."""

    def client(self, context: RequestContext, request_name: str) -> Client:
        """See `Access.client`."""
        client = self._clients.get(context)
        if client is None or client.request_name != request_name:
            if len(self._clients) >= MOST_REMEMBERED_CLIENTS:
                self._clients.clear()
            client = self._clients[context] = ListedClient(self._rules, context, request_name)
        return client


class ListedClient(Client):
    """A sender subject to access control lists. As in Kafka, every decision is logged: refusals at INFO, others at
    DEBUG; refusals that only shape a response, at TRACE.
    """

    __slots__ = ("_host", "_principal", "_rules", "request_name")

    def __init__(self, rules: AclRules, context: RequestContext, request_name: str) -> None:
        self._rules = rules
        self._principal = str(context.principal)
        self._host = host_address(context.client_address)
        self.request_name = request_name

    def may(
        self,
        operation: AclOperation,
        resource_type: ResourceType,
        name: str,
        *,
        count: int = 1,
        logs_denial: bool = True,
    ) -> bool:
        allowed = self._rules.allows(self._principal, self._host, operation, resource_type, name)
        level = logging.DEBUG if allowed else logging.INFO if logs_denial else _TRACE
        if logger.isEnabledFor(level):
            resource = f"{title(resource_type)}:{PatternType.LITERAL.name}:{name}"
            self._log(level, operation, resource, count, allowed=allowed)
        return allowed

    def may_somewhere(self, operation: AclOperation, resource_type: ResourceType) -> bool:
        allowed = self._rules.allows_somewhere(self._principal, self._host, operation, resource_type)
        level = logging.DEBUG if allowed else logging.INFO
        if logger.isEnabledFor(level):
            resource = f"{title(resource_type)}:{PatternType.UNKNOWN.name}:NONE"
            self._log(level, operation, resource, 0, allowed=allowed)
        return allowed

    def denied(
        self,
        operation: AclOperation,
        resource_type: ResourceType,
        names: Collection[str],
        *,
        logs_denial: bool = True,
    ) -> frozenset[str]:
        if logger.isEnabledFor(logging.DEBUG):
            return super().denied(operation, resource_type, names, logs_denial=logs_denial)
        # Fast path while DEBUG is off: most clients may do what they ask for, and only refusals are logged.
        rules, principal, host = self._rules, self._principal, self._host
        for name in names:
            if not rules.allows(principal, host, operation, resource_type, name):
                return super().denied(operation, resource_type, names, logs_denial=logs_denial)
        return _NONE

    def operations(self, resource_type: ResourceType, name: str) -> int:
        return SUPPORTED[resource_type] & self._rules.operations(self._principal, self._host, resource_type, name)

    def _log(self, level: int, operation: AclOperation, resource: str, count: int, *, allowed: bool) -> None:
        logger.log(
            level,
            "Principal = %s is %s Operation = %s from host = %s on resource = %s for request = %s with "
            "resourceRefCount = %d",
            self._principal,
            "Allowed" if allowed else "Denied",
            title(operation),
            self._host,
            resource.translate(_NO_LINE_BREAKS),
            self.request_name,
            count,
        )


_NO_LINE_BREAKS: Final = dict.fromkeys((*range(32), 127), "?")
"""Names come from clients; without this they could forge lines of the log."""
