"""Every message of the protocol, one module per family of APIs; import a message from its family.

Importing this package declares them all: `REQUEST_TYPES` and `RESPONSE_TYPES` find a message by its API.
"""

from __future__ import annotations

from protocol.messages import (
    api_versions,
    cluster_commands,
    cluster_requests,
    configs,
    coordinators,
    delegation_tokens,
    fetch,
    group_admin,
    group_offsets,
    group_records,
    groups,
    headers,
    log_dirs,
    metadata,
    offsets,
    produce,
    producer_ids,
    quotas,
    reassignments,
    security,
    topics,
    transactions,
)
from protocol.wire.schema import REQUEST_TYPES, RESPONSE_TYPES

__all__ = [
    "REQUEST_TYPES",
    "RESPONSE_TYPES",
    "api_versions",
    "cluster_commands",
    "cluster_requests",
    "configs",
    "coordinators",
    "delegation_tokens",
    "fetch",
    "group_admin",
    "group_offsets",
    "group_records",
    "groups",
    "headers",
    "log_dirs",
    "metadata",
    "offsets",
    "produce",
    "producer_ids",
    "quotas",
    "reassignments",
    "security",
    "topics",
    "transactions",
]
