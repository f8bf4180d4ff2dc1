"""Questions of handlers and guards: may the client of this request do that?"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from broker.network.registry import RequestContext
from protocol.acl_types import CLUSTER_NAME, SUPPORTED_OPERATIONS, AclOperation, ResourceType

SUPPORTED: Final = {
    resource_type: sum(1 << each for each in operations) for resource_type, operations in SUPPORTED_OPERATIONS.items()
}
"""The operations that there are for a type of resource, as bits of their numbers."""


class Access:
    """Access without an authorizer: everybody may do everything."""

    is_open = True

    def client(self, context: RequestContext, request_name: str) -> Client:  # noqa: ARG002
        """Whoever sent a request; `request_name` is Kafka's name of the API, for the log."""
        return ANYBODY


class Client:
    """The sender of one request. Here, one who may do everything."""

    def may(
        self,
        operation: AclOperation,
        resource_type: ResourceType,
        name: str,
        *,
        count: int = 1,
        logs_denial: bool = True,
    ) -> bool:
        """Whether the client may do it. `count` is how often the request names the resource. With `logs_denial`, a
        refusal is worth a line: it was asked for this resource.
        """
        del operation, resource_type, name, count, logs_denial
        return True

    def may_in_cluster(self, operation: AclOperation, *, logs_denial: bool = True) -> bool:
        """Whether the client may do it to the cluster."""
        return self.may(operation, ResourceType.CLUSTER, CLUSTER_NAME, logs_denial=logs_denial)

    def may_somewhere(self, operation: AclOperation, resource_type: ResourceType) -> bool:
        """Whether there could be a resource to which the client may do it."""
        del operation, resource_type
        return True

    def denied(
        self,
        operation: AclOperation,
        resource_type: ResourceType,
        names: Collection[str],
        *,
        logs_denial: bool = True,
    ) -> frozenset[str]:
        """Those of the names for which it is not allowed. The log says how often each of them is among the names."""
        counts: dict[str, int] = {}
        for name in names:
            counts[name] = counts.get(name, 0) + 1
        return frozenset(
            name
            for name, count in counts.items()
            if not self.may(operation, resource_type, name, count=count, logs_denial=logs_denial)
        )

    def operations(self, resource_type: ResourceType, name: str) -> int:
        """Authorized operations as answers tell them (KIP-430): bits of the operations' numbers."""
        del name
        return SUPPORTED[resource_type]


OPEN: Final = Access()
ANYBODY: Final = Client()


def host_address(address: str) -> str:
    """An IP address as Java's `InetAddress.getHostAddress` has it: IPv6 in full, without zeros in front."""
    if ":" not in address:
        return address
    from ipaddress import IPv6Address

    groups = IPv6Address(address.partition("%")[0]).exploded.split(":")
    return ":".join(f"{int(group, 16):x}" for group in groups)
