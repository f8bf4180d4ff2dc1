"""DescribeConfigs, AlterConfigs and IncrementalAlterConfigs.

Resource types: 2 topic, 4 broker, 8 broker logger (Kafka class `ConfigResource.Type`).
"""

from __future__ import annotations

from protocol.api_keys import ApiKey
from protocol.wire.schema import Request, Response, Struct, boolean, field, int8, int16, int32, nullable_string, string


class DescribeConfigsRequest(Request, api_key=ApiKey.DESCRIBE_CONFIGS, versions="0-4"):
    """Resources to describe (KIP-133).

    - v1: synonyms
    - v3: documentation
    - v4: flexible
    """

    class DescribeConfigsResource(Struct):
        """A resource and the requested keys; null for all."""

        resource_type: int8
        resource_name: string
        configuration_keys: list[string] | None

    resources: list[DescribeConfigsResource]
    include_synonyms: boolean = field("1+", default=False)
    include_documentation: boolean = field("3+", default=False)


class DescribeConfigsResponse(Response, api_key=ApiKey.DESCRIBE_CONFIGS, versions="0-4"):
    """Configuration values with their sources.

    - v1: source and synonyms instead of a flag for defaults
    - v3: type and documentation
    - v4: flexible

    Sources: 1 topic, 2 this broker's dynamic, 3 all brokers' dynamic, 4 static file, 5 default, 6 logger.
    Types: 1 boolean, 2 string, 3 int, 4 short, 5 long, 6 double, 7 list, 8 class, 9 password.
    """

    class DescribeConfigsSynonym(Struct):
        """A value that would apply if the preceding ones were removed."""

        name: string
        value: nullable_string
        source: int8

    class DescribeConfigsResourceResult(Struct):
        """One configuration value; null when it is sensitive."""

        name: string
        value: nullable_string
        read_only: boolean
        is_default: boolean = field("0", default=False)
        config_source: int8 = field("1+", default=-1, ignorable=True)
        is_sensitive: boolean
        synonyms: list[DescribeConfigsResponse.DescribeConfigsSynonym] = field("1+", default=[], ignorable=True)
        config_type: int8 = field("3+", default=0, ignorable=True)
        documentation: nullable_string = field("3+", default=None, ignorable=True)

    class DescribeConfigsResult(Struct):
        """The configuration of one resource."""

        error_code: int16
        error_message: nullable_string
        resource_type: int8
        resource_name: string
        configs: list[DescribeConfigsResponse.DescribeConfigsResourceResult]

    throttle_time_ms: int32
    results: list[DescribeConfigsResult]


class AlterConfigsRequest(Request, api_key=ApiKey.ALTER_CONFIGS, versions="0-2"):
    """Configurations that replace all of a resource's overrides (KIP-133).

    - v2: flexible
    """

    class AlterableConfig(Struct):
        """One override."""

        name: string
        value: nullable_string

    class AlterConfigsResource(Struct):
        """A resource and its complete new overrides."""

        resource_type: int8
        resource_name: string
        configs: list[AlterConfigsRequest.AlterableConfig]

    resources: list[AlterConfigsResource]
    validate_only: boolean


class AlterConfigsResponse(Response, api_key=ApiKey.ALTER_CONFIGS, versions="0-2"):
    """The outcome per resource.

    - v2: flexible
    """

    class AlterConfigsResourceResponse(Struct):
        """The outcome for one resource."""

        error_code: int16
        error_message: nullable_string
        resource_type: int8
        resource_name: string

    throttle_time_ms: int32
    responses: list[AlterConfigsResourceResponse]


class IncrementalAlterConfigsRequest(Request, api_key=ApiKey.INCREMENTAL_ALTER_CONFIGS, versions="0-1"):
    """Changes to single configuration keys (KIP-339).

    - v1: flexible
    """

    class AlterableConfig(Struct):
        """One change. Operations: 0 set, 1 delete, 2 append to a list, 3 subtract from a list."""

        name: string
        config_operation: int8
        value: nullable_string

    class AlterConfigsResource(Struct):
        """A resource and the changes to it."""

        resource_type: int8
        resource_name: string
        configs: list[IncrementalAlterConfigsRequest.AlterableConfig]

    resources: list[AlterConfigsResource]
    validate_only: boolean


class IncrementalAlterConfigsResponse(Response, api_key=ApiKey.INCREMENTAL_ALTER_CONFIGS, versions="0-1"):
    """The outcome per resource.

    - v1: flexible
    """

    class AlterConfigsResourceResponse(Struct):
        """The outcome for one resource."""

        error_code: int16
        error_message: nullable_string
        resource_type: int8
        resource_name: string

    throttle_time_ms: int32
    responses: list[AlterConfigsResourceResponse]
