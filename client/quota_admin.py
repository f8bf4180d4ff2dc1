"""Administration of quotas (Kafka class `KafkaAdminClient`; KIP-546)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from client.errors import raise_for
from client.kafka_client import KafkaClient
from protocol.messages.quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)

EXACT, DEFAULT, ANY_NAME = range(3)

Parts = Mapping[str, str | None]
"""An entity: its name for each of the types `user`, `client-id` and `ip` that it has; None is the default."""


class QuotaEntry(NamedTuple):
    """The quotas of one entity."""

    parts: Parts
    quotas: Mapping[str, float]


async def describe_client_quotas(
    client: KafkaClient, parts: Parts, any_name: Iterable[str] = (), *, strict: bool = True
) -> list[QuotaEntry]:
    """The quotas of entities that have these names, and any name for the types in `any_name`; with `strict` no other
    types. Raises ApiError.
    """
    component = DescribeClientQuotasRequest.ComponentData
    components = [
        component(entity_type=kind, match_type=DEFAULT if name is None else EXACT, match=name)
        for kind, name in parts.items()
    ]
    components += [component(entity_type=kind, match_type=ANY_NAME, match=None) for kind in any_name]
    request = DescribeClientQuotasRequest(components=components, strict=strict)
    response = await client.ask_any("describeClientQuotas", request, DescribeClientQuotasResponse)
    raise_for(response.error_code, response.error_message)
    return [
        QuotaEntry(
            {part.entity_type: part.entity_name for part in entry.entity},
            {quota.key: quota.value for quota in entry.values},
        )
        for entry in response.entries or ()
    ]


async def alter_client_quotas(client: KafkaClient, parts: Parts, changes: Mapping[str, float | None]) -> None:
    """Set quotas of one entity; None takes one away. Raises ApiError."""
    entity, change = AlterClientQuotasRequest.EntityData, AlterClientQuotasRequest.OpData
    request = AlterClientQuotasRequest(
        entries=[
            AlterClientQuotasRequest.EntryData(
                entity=[entity(entity_type=kind, entity_name=name) for kind, name in parts.items()],
                ops=[
                    change(key=key, value=0.0 if value is None else value, remove=value is None)
                    for key, value in changes.items()
                ],
            )
        ],
        validate_only=False,
    )
    response = await client.ask_any("alterClientQuotas", request, AlterClientQuotasResponse)
    for entry in response.entries:
        raise_for(entry.error_code, entry.error_message)
