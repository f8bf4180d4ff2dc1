"""DescribeClientQuotas and AlterClientQuotas (KIP-546): quotas of users, client ids and addresses."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from typing import Final, Protocol

from broker.metadata.metadata_cache import MetadataCache
from broker.network.registry import RequestContext, api
from broker.network.shares import Split
from broker.security.rights import DENIAL_MESSAGES, ClientRequest, OnCluster
from cluster.metadata_image import ConfigResource
from cluster.quotas.alterations import (
    ENTITY_NAMES,
    Component,
    altered,
    check_config,
    check_filter,
    checked_entity,
    matches,
    shown_quotas,
)
from cluster.quotas.entities import EntityType, QuotaEntity
from environment.contract import Clock
from environment.slices import Slices, in_slices
from protocol.acl_types import AclOperation
from protocol.api_keys import ApiKey
from protocol.errors import ApiError, ErrorCode, detached
from protocol.messages.quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)

logger = logging.getLogger("kafka.server.ZkAdminManager")

_Change = AlterClientQuotasRequest.OpData
_Altered = AlterClientQuotasResponse.EntryData
_AlteredPart = AlterClientQuotasResponse.EntityData

_IP_V4: Final = r"(25[0-5]|2[0-4]\d|1?\d?\d)(\.(25[0-5]|2[0-4]\d|1?\d?\d)){3}"
_ANSWERED_FIRST: Final = "ip client-id user"
"""The order of an altered entity's parts in Kafka's responses, which comes from a Java HashMap."""


class QuotaStore(Protocol):
    """Stores the configurations that contain quotas."""

    async def read(self, resource: ConfigResource) -> Mapping[str, str]:
        """Read one configuration. Raises ApiError."""
        ...

    async def alter_configs(
        self, changes: Mapping[ConfigResource, Mapping[str, str]]
    ) -> Mapping[ConfigResource, ApiError]:
        """Replace configurations; returns errors by resource."""
        ...


def _refuse_to_alter(asked: ClientRequest[AlterClientQuotasRequest], code: ErrorCode) -> AlterClientQuotasResponse:
    """Every entity gets the error, in the order of the request."""
    return AlterClientQuotasResponse(
        throttle_time_ms=0,
        entries=[
            _Altered(
                error_code=code,
                error_message=DENIAL_MESSAGES[code],
                entity=[
                    _AlteredPart(entity_type=part.entity_type, entity_name=part.entity_name) for part in entry.entity
                ],
            )
            for entry in asked.request.entries
        ],
    )


class ClientQuotaHandlers:
    """Shows and changes quotas. A change is in effect on this broker when the reply is sent, and on others moments
    later.
    """

    def __init__(
        self,
        metadata: MetadataCache,
        store: QuotaStore,
        changing: asyncio.Lock,
        addresses_of: Callable[[str], Awaitable[list[str]]],
        clock: Clock,
    ) -> None:
        """`changing` is held during changes of users, client ids and addresses, which are read-modify-write.
        `addresses_of` is `Network.addresses_of`.
        """
        self._metadata = metadata
        self._store = store
        self._changing = changing
        self._addresses_of = addresses_of
        self._clock = clock

    @api(
        ApiKey.DESCRIBE_CLIENT_QUOTAS,
        versions=(0, 1),
        right=OnCluster(AclOperation.DESCRIBE_CONFIGS, refusal=lambda _, code: _not_described(code, None)),
        reads_only=True,
        whole="its array is a filter",
    )
    def describe_client_quotas(
        self,
        context: RequestContext,  # noqa: ARG002
        request: DescribeClientQuotasRequest,
    ) -> DescribeClientQuotasResponse:
        """Describe the quotas of the entities that match the filter: users, client ids, both combined, then
        addresses.
        """
        # A longer list has an unknown or duplicate kind.
        some = request.components[: len(ENTITY_NAMES) + 1]
        components = [Component(each.entity_type, each.match_type, each.match) for each in some]
        try:
            check_filter(components)
            entries = [
                _entry(entity, quotas)
                for resource, config in sorted(self._quota_configs(), key=_place)
                if (entity := QuotaEntity.of(resource)) is not None
                and matches(entity, components, strict=request.strict)
                and (quotas := shown_quotas(entity, config))
            ]
        except ApiError as error:
            return _not_described(error.error_code, _error_message(error))
        return DescribeClientQuotasResponse(
            throttle_time_ms=0, error_code=ErrorCode.NONE, error_message="", entries=entries
        )

    def _quota_configs(self) -> Iterable[tuple[ConfigResource, Mapping[str, str]]]:
        return (item for item in self._metadata.image.configs.items() if item[0][0] < 0)

    @api(
        ApiKey.ALTER_CLIENT_QUOTAS,
        versions=(0, 1),
        right=OnCluster(AclOperation.ALTER_CONFIGS, refusal=_refuse_to_alter),
        splits=[Split("entries")],
    )
    async def alter_client_quotas(
        self,
        context: RequestContext,  # noqa: ARG002
        request: AlterClientQuotasRequest,
    ) -> AlterClientQuotasResponse:
        """Change the quotas of each entity. Entities fail independently. A repeated entity gets its last result."""
        slices = Slices(self._clock)
        outcomes: dict[tuple[tuple[str, str | None], ...], ApiError | None] = {}
        async with self._changing:
            async for entry in in_slices(request.entries, slices):
                parts: dict[str, str | None] = {}
                async for part in in_slices(entry.entity, slices):
                    parts[part.entity_type] = part.entity_name
                kinds = sorted(parts, key=_ANSWERED_FIRST.find)
                asked = tuple(zip(kinds, map(parts.get, kinds), strict=True))
                changes = in_slices(entry.ops, slices)
                try:
                    await self._alter(parts, changes, validate_only=request.validate_only)
                    outcomes[asked] = None
                except ApiError as error:
                    logger.info("Refused to alter the quotas of %s: %s", parts, error)
                    outcomes[asked] = detached(error)
        response = AlterClientQuotasResponse(throttle_time_ms=0, entries=[])
        for named, failure in outcomes.items():
            altered_entry = _Altered(
                error_code=ErrorCode.NONE if failure is None else failure.error_code,
                error_message=None if failure is None else _error_message(failure),
                entity=[],
            )
            async for kind, name in in_slices(named, slices):
                altered_entry.entity.append(_AlteredPart(entity_type=kind, entity_name=name))
            response.entries.append(altered_entry)
        return response

    async def _alter(
        self, parts: Mapping[str, str | None], changes: AsyncIterator[_Change], *, validate_only: bool
    ) -> None:
        entity = checked_entity(parts)
        if isinstance(entity.ip, str) and not await self._is_address(entity.ip):
            raise ApiError(ErrorCode.INVALID_REQUEST, f"{entity.resource[1]} is not a valid IP or resolvable host.")
        config = await self._store.read(entity.resource)
        async for change in changes:
            config = altered(entity, config, [(change.key, None if change.remove else change.value)])
        if validate_only:
            return
        check_config(entity, config)
        for error in (await self._store.alter_configs({entity.resource: config})).values():
            raise detached(error)

    async def _is_address(self, name: str) -> bool:
        """Whether Kafka accepts it as an IP address or host name. It rejects IPv6 here, because it looks for an address
        in the znode's name.
        """
        if re.fullmatch(_IP_V4, name):
            return True
        if not re.fullmatch(r"[A-Za-z0-9._-]+", name):
            return False
        try:
            return bool(await self._addresses_of(name))
        except OSError:
            return False


def _not_described(error_code: ErrorCode, message: str | None) -> DescribeClientQuotasResponse:
    return DescribeClientQuotasResponse(throttle_time_ms=0, error_code=error_code, error_message=message, entries=None)


def _place(item: tuple[ConfigResource, Mapping[str, str]]) -> tuple[bool, bool, int, str]:
    """The sort key of an entity in the response."""
    kind, name = item[0]
    return kind == EntityType.IP, "/" in name, -kind, name


def _entry(entity: QuotaEntity, quotas: Mapping[str, float]) -> DescribeClientQuotasResponse.EntryData:
    return DescribeClientQuotasResponse.EntryData(
        entity=[
            DescribeClientQuotasResponse.EntityData(entity_type=kind, entity_name=name)
            for kind, name in entity.parts().items()
        ],
        values=[DescribeClientQuotasResponse.ValueData(key=key, value=value) for key, value in quotas.items()],
    )


def _error_message(error: ApiError) -> str | None:
    """The error message for the client; as in Kafka, none for an unexpected error."""
    return None if error.error_code is ErrorCode.UNKNOWN_SERVER_ERROR else error.message or None
