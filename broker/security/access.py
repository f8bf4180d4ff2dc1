"""Authorization of requests: what their clients may do."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from broker.network.registry import RequestContext
from protocol.acl_types import CLUSTER_NAME, SUPPORTED_OPERATIONS, AclOperation, ResourceType

SUPPORTED: Final = {
    resource_type: sum(1 << each for each in operations) for resource_type, operations in SUPPORTED_OPERATIONS.items()
}
"""The operations that each type of resource supports, as bits of their numbers."""


class Access:
    """Access without an authorizer: every client may do everything."""

    is_open = True

    def client(self, context: RequestContext, request_name: str) -> Client:  # noqa: ARG002
        """The sender of a request; `request_name` is Kafka's name of the API, for the log."""
        return ANYBODY


class Client:
    """The sender of one request. This base class may do everything."""

    def may(
        self,
        operation: AclOperation,
        resource_type: ResourceType,
        name: str,
        *,
        count: int = 1,
        logs_denial: bool = True,
    ) -> bool:
        """Whether the client may perform the operation. `count` is how often the request names the resource.
        `logs_denial`: the client asked for this resource, so a refusal is logged.
        """
        del operation, resource_type, name, count, logs_denial
        return True

    def may_in_cluster(self, operation: AclOperation, *, logs_denial: bool = True) -> bool:
        """Whether the client may perform the operation on the cluster."""
        return self.may(operation, ResourceType.CLUSTER, CLUSTER_NAME, logs_denial=logs_denial)

    def may_somewhere(self, operation: AclOperation, resource_type: ResourceType) -> bool:
        """Whether the client may perform the operation on at least one resource, existing or not."""
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
        """The denied names. The log shows how often each is in `names`."""
        counts: dict[str, int] = {}
        for name in names:
            counts[name] = counts.get(name, 0) + 1
        return frozenset(
            name
            for name, count in counts.items()
            if not self.may(operation, resource_type, name, count=count, logs_denial=logs_denial)
        )

    def operations(self, resource_type: ResourceType, name: str) -> int:
        """Authorized operations as in responses (KIP-430): bits of the operations' numbers."""
        del name
        return SUPPORTED[resource_type]


OPEN: Final = Access()
ANYBODY: Final = Client()


def host_address(address: str) -> str:
    """Format an IP address like Java's `InetAddress.getHostAddress`: IPv6 in full, without leading zeros."""
    if ":" not in address:
        return address
    from ipaddress import IPv6Address

    groups = IPv6Address(address.partition("%")[0]).exploded.split(":")
    return ":".join(f"{int(group, 16):x}" for group in groups)
