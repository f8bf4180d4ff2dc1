"""DescribeClientQuotas and AlterClientQuotas: limits of users, clients and addresses (KIP-546)."""

from __future__ import annotations

from protocol.api_keys import ApiKey
from protocol.wire.schema import (
    Request,
    Response,
    Struct,
    boolean,
    float64,
    int8,
    int16,
    int32,
    nullable_string,
    string,
)


class DescribeClientQuotasRequest(Request, api_key=ApiKey.DESCRIBE_CLIENT_QUOTAS, versions="0-1"):
    """A filter for quotas; `strict` excludes entities with types that no component names.

    - v1: flexible
    """

    class ComponentData(Struct):
        """One entity type; `match_type` 0 is the exact name `match`, 1 the default, 2 any name."""

        entity_type: string
        match_type: int8
        match: nullable_string

    components: list[ComponentData]
    strict: boolean


class DescribeClientQuotasResponse(Response, api_key=ApiKey.DESCRIBE_CLIENT_QUOTAS, versions="0-1"):
    """The quotas that match; null with an error.

    - v1: flexible
    """

    class EntityData(Struct):
        """A part of an entity; a null name is the default."""

        entity_type: string
        entity_name: nullable_string

    class ValueData(Struct):
        """One quota."""

        key: string
        value: float64

    class EntryData(Struct):
        """The quotas of one entity."""

        entity: list[DescribeClientQuotasResponse.EntityData]
        values: list[DescribeClientQuotasResponse.ValueData]

    throttle_time_ms: int32
    error_code: int16
    error_message: nullable_string
    entries: list[EntryData] | None


class AlterClientQuotasRequest(Request, api_key=ApiKey.ALTER_CLIENT_QUOTAS, versions="0-1"):
    """Changes of quotas, entity by entity; with `validate_only` they are only checked.

    - v1: flexible
    """

    class EntityData(Struct):
        """A part of an entity; a null name is the default."""

        entity_type: string
        entity_name: nullable_string

    class OpData(Struct):
        """One quota to set, or to remove with `remove`."""

        key: string
        value: float64
        remove: boolean

    class EntryData(Struct):
        """The changes of one entity."""

        entity: list[AlterClientQuotasRequest.EntityData]
        ops: list[AlterClientQuotasRequest.OpData]

    entries: list[EntryData]
    validate_only: boolean


class AlterClientQuotasResponse(Response, api_key=ApiKey.ALTER_CLIENT_QUOTAS, versions="0-1"):
    """The outcome for each entity.

    - v1: flexible
    """

    class EntityData(Struct):
        """A part of an entity; a null name is the default."""

        entity_type: string
        entity_name: nullable_string

    class EntryData(Struct):
        """The outcome for one entity."""

        error_code: int16
        error_message: nullable_string
        entity: list[AlterClientQuotasResponse.EntityData]

    throttle_time_ms: int32
    entries: list[EntryData]
