"""DescribeConfigs, AlterConfigs (KIP-133) and IncrementalAlterConfigs (KIP-339) of topics, brokers and loggers."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Protocol

from broker.metadata.config_changes import Change, Resource, apply, operation_of, parse_id
from broker.metadata.config_service import CLUSTER_DEFAULT, ConfigService, DescribedConfig, declared_key
from broker.metadata.metadata_cache import MetadataCache
from broker.network.registry import RequestContext, api
from broker.network.shares import Split
from broker.security.access import Client
from broker.security.rights import DENIAL_MESSAGES, ClientRequest, InShares, Outcome
from cluster.metadata_image import ConfigResource
from config.definitions import ConfigKey
from config.topic_config import TOPIC_KEYS
from environment.contract import Clock
from environment.logging_setup import LEVELS, ROOT, LoggerLevels
from environment.slices import Slices, in_slices
from protocol.acl_types import AclOperation, ResourceType
from protocol.api_keys import ApiKey
from protocol.config_resources import AlterConfigOp, ConfigResourceType, ConfigSource
from protocol.errors import ApiError, ErrorCode, detached
from protocol.messages.configs import (
    AlterConfigsRequest,
    AlterConfigsResponse,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from protocol.topic_partition import validate_topic_name
from protocol.value import Value
from protocol.wire.encoded_items import ItemEncoder

logger = logging.getLogger("kafka.server.ConfigAdminManager")

_DescribeResult = DescribeConfigsResponse.DescribeConfigsResult
_ShownConfig = DescribeConfigsResponse.DescribeConfigsResourceResult

RESOURCES_AT_ONCE: Final = 20
"""Resources described per turn of the event loop, which takes a millisecond or two."""

_KNOWN_TYPES = frozenset(ConfigResourceType)


class AlterResult(Value):
    """The result for one resource."""

    error_code: ErrorCode
    message: str | None


class ConfigStore(Protocol):
    """Stores overrides."""

    async def alter_configs(
        self, changes: Mapping[ConfigResource, Mapping[str, str]]
    ) -> Mapping[ConfigResource, ApiError]:
        """Replace the overrides of topics and brokers ("" for all brokers); returns errors by resource."""
        ...


def _guard_changes(result: Any, _: object, asked: ClientRequest[Any]) -> Outcome:
    """ALTER_CONFIGS on each resource; `result` is the class of a refusal."""
    resources = asked.request.resources
    times = Counter((each.resource_type, each.resource_name) for each in resources)
    refusals = {}
    for place, each in enumerate(resources):
        # Unknown types and repeated names are refused anyway.
        if each.resource_type in _KNOWN_TYPES and times[each.resource_type, each.resource_name] == 1:
            error = _denial(asked.client, AclOperation.ALTER_CONFIGS, each)
            if error is not None:
                refusals[place] = result(
                    error_code=error,
                    error_message=None,
                    resource_type=each.resource_type,
                    resource_name=each.resource_name,
                )
    return asked.without_places("resources", refusals, "responses")


def _denial(client: Client, operation: AclOperation, resource: Any) -> ErrorCode | None:
    """The error if the client lacks the right on a topic, or on the cluster for any other resource."""
    if resource.resource_type == ConfigResourceType.TOPIC:
        allowed = client.may(operation, ResourceType.TOPIC, resource.resource_name)
        return None if allowed else ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return None if client.may_in_cluster(operation) else ErrorCode.CLUSTER_AUTHORIZATION_FAILED


class ConfigHandlers:
    """Shows and changes configurations."""

    def __init__(
        self,
        config_service: ConfigService,
        metadata: MetadataCache,
        store: ConfigStore,
        logger_levels: LoggerLevels,
        clock: Clock,
    ) -> None:
        self._clock = clock
        self._metadata = metadata
        self._config_service = config_service
        self._store = store
        self._logger_levels = logger_levels
        # Changes are read-modify-write: one request at a time.
        self._changing = asyncio.Lock()

    # -- DescribeConfigs -----------------------------------------------------------------------------------------------

    def _guard_describe(self, asked: ClientRequest[DescribeConfigsRequest]) -> Outcome:
        """DESCRIBE_CONFIGS on each resource."""
        request = asked.request
        if any(each.resource_type not in _KNOWN_TYPES for each in request.resources):
            return asked.proceed()  # fails as a whole
        allowed, refusals = [], []
        for each in request.resources:
            error = _denial(asked.client, AclOperation.DESCRIBE_CONFIGS, each)
            if error is None:
                allowed.append(each)
                continue
            refusals.append(
                _DescribeResult(
                    error_code=error,
                    error_message=DENIAL_MESSAGES[error],
                    resource_type=each.resource_type,
                    resource_name=each.resource_name,
                    configs=[],
                )
            )
        request.resources = allowed
        return asked.proceed("results", refusals)

    @api(
        ApiKey.DESCRIBE_CONFIGS,
        versions=(0, 4),
        right=InShares(
            _guard_describe,
            "resources",
            "results",
            lambda: DescribeConfigsResponse(throttle_time_ms=0, results=[]),
        ),
        reads_only=True,
        whole="what resources share is encoded once",
    )
    def describe_configs(
        self, context: RequestContext, request: DescribeConfigsRequest
    ) -> DescribeConfigsResponse | Awaitable[DescribeConfigsResponse]:
        """Describe the requested keys of each resource; an empty or null list means all. An unknown resource type fails
        the whole request.
        """
        shown = _DescribedConfigs(request)
        if len(request.resources) > RESOURCES_AT_ONCE:
            return self._describe_in_slices(context, request, shown)
        results = [self._described(resource, shown) for resource in request.resources]
        return DescribeConfigsResponse(throttle_time_ms=0, results=results)

    async def _describe_in_slices(
        self, context: RequestContext, request: DescribeConfigsRequest, shown: _DescribedConfigs
    ) -> DescribeConfigsResponse:
        shown.encode_for(context.api_version)
        results = ItemEncoder(_DescribeResult, DescribeConfigsResponse, context.api_version)
        async for resource in in_slices(request.resources, self._clock):
            results.add(self._described(resource, shown))
        return DescribeConfigsResponse(throttle_time_ms=0, results=results.array())

    def _described(
        self, resource: DescribeConfigsRequest.DescribeConfigsResource, shown: _DescribedConfigs
    ) -> _DescribeResult:
        result = _DescribeResult(
            error_code=ErrorCode.NONE,
            error_message="",
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
            configs=[],
        )
        try:
            if shown.has_unknown_type:
                raise ApiError(ErrorCode.INVALID_REQUEST, "A resource of the request has an unknown type.")
            described = self._describe(ConfigResourceType(resource.resource_type), resource.resource_name)
            result.configs = shown.of(described, frozenset(resource.configuration_keys or ()))
        except ApiError as error:
            result.error_code, result.error_message = error.error_code, error.message
        return result

    def _describe(self, resource_type: ConfigResourceType, name: str) -> Sequence[DescribedConfig]:
        if resource_type is ConfigResourceType.TOPIC:
            validate_topic_name(name)
            if name not in self._metadata.image.topics:
                raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "")
            return self._config_service.describe_topic(self._metadata.image.config(ConfigResourceType.TOPIC, name))
        if resource_type is ConfigResourceType.CLIENT_METRICS:
            raise ApiError(ErrorCode.INVALID_REQUEST, "Config type client-metrics is only supported on KRaft clusters")
        if resource_type is ConfigResourceType.BROKER and not name:
            return self._config_service.describe_cluster_default()
        own_id = self._config_service.broker_id
        if not name:
            raise ApiError(ErrorCode.INVALID_REQUEST, "Broker id must not be empty")
        if parse_id(name, "Broker id") != own_id:
            or_all = " or empty string," if resource_type is ConfigResourceType.BROKER else ""
            raise ApiError(
                ErrorCode.INVALID_REQUEST, f"Unexpected broker id, expected {own_id}{or_all} but received {name}"
            )
        if resource_type is ConfigResourceType.BROKER:
            return self._config_service.describe_broker()
        return self._describe_loggers()

    def _describe_loggers(self) -> Sequence[DescribedConfig]:
        source = ConfigSource.DYNAMIC_BROKER_LOGGER_CONFIG
        return [
            DescribedConfig(name, self._logger_levels.level(name), source, read_only=False, sensitive=False,
                            synonyms=(), config_type=0, documentation="")
            for name in self._logger_levels.names()
        ]  # fmt: skip

    # -- AlterConfigs, IncrementalAlterConfigs -------------------------------------------------------------------------

    @api(
        ApiKey.ALTER_CONFIGS,
        versions=(0, 2),
        right=partial(_guard_changes, AlterConfigsResponse.AlterConfigsResourceResponse),
        splits=[Split("resources", unique=("resource_type", "resource_name"))],
    )
    async def alter_configs(
        self,
        context: RequestContext,  # noqa: ARG002
        request: AlterConfigsRequest,
    ) -> AlterConfigsResponse:
        """Replace all overrides of each resource. Resources fail independently."""
        slices = Slices(self._clock)
        resources = [
            Resource(
                each.resource_type,
                each.resource_name,
                [
                    Change(config.name, AlterConfigOp.SET, config.value)
                    async for config in in_slices(each.configs, slices)
                ],
                replaces=True,
            )
            for each in request.resources
        ]
        outcomes = await self._alter_all(resources, slices, validate_only=request.validate_only)
        return AlterConfigsResponse(
            throttle_time_ms=0,
            responses=[
                AlterConfigsResponse.AlterConfigsResourceResponse(
                    error_code=outcome.error_code,
                    error_message=outcome.message,
                    resource_type=resource.resource_type,
                    resource_name=resource.name,
                )
                for resource, outcome in zip(resources, outcomes, strict=True)
            ],
        )

    @api(
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        versions=(0, 1),
        right=partial(_guard_changes, IncrementalAlterConfigsResponse.AlterConfigsResourceResponse),
        splits=[Split("resources", unique=("resource_type", "resource_name"))],
    )
    async def incremental_alter_configs(
        self,
        context: RequestContext,  # noqa: ARG002
        request: IncrementalAlterConfigsRequest,
    ) -> IncrementalAlterConfigsResponse:
        """Change single keys of each resource. Resources fail independently."""
        slices = Slices(self._clock)
        resources = [
            Resource(
                each.resource_type,
                each.resource_name,
                [
                    Change(config.name, config.config_operation, config.value)
                    async for config in in_slices(each.configs, slices)
                ],
            )
            for each in request.resources
        ]
        outcomes = await self._alter_all(resources, slices, validate_only=request.validate_only)
        return IncrementalAlterConfigsResponse(
            throttle_time_ms=0,
            responses=[
                IncrementalAlterConfigsResponse.AlterConfigsResourceResponse(
                    error_code=outcome.error_code,
                    error_message=outcome.message,
                    resource_type=resource.resource_type,
                    resource_name=resource.name,
                )
                for resource, outcome in zip(resources, outcomes, strict=True)
            ],
        )

    async def _alter_all(
        self, resources: Sequence[Resource], slices: Slices, *, validate_only: bool
    ) -> list[AlterResult]:
        """Validate and change one resource after the other. Topics are independent of each other, so they are stored
        together.
        """
        times = Counter((resource.resource_type, resource.name) for resource in resources)
        outcomes: list[AlterResult] = []
        topics: dict[str, int] = {}
        configs: dict[ConfigResource, Mapping[str, str]] = {}

        async def store_topics() -> None:
            errors = await self._store.alter_configs(configs) if configs else {}
            for (_, name), error in errors.items():
                outcomes[topics[name]] = _refused(resources[topics[name]], error)
            topics.clear()
            configs.clear()

        async with self._changing:
            async for resource in in_slices(resources, slices):
                try:
                    if times[resource.resource_type, resource.name] > 1:
                        raise ApiError(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
                    await _check_changes(resource, slices)
                    if resource.resource_type == ConfigResourceType.TOPIC:
                        config = await self._judge_topic(resource, slices)
                        if not validate_only:
                            configs[ConfigResourceType.TOPIC, resource.name] = config
                            topics[resource.name] = len(outcomes)
                    else:
                        await store_topics()
                        await self._alter(resource, slices, validate_only=validate_only)
                    outcomes.append(AlterResult(ErrorCode.NONE, None))
                except ApiError as error:
                    outcomes.append(_refused(resource, error))
            await store_topics()
        return outcomes

    async def _alter(self, resource: Resource, slices: Slices, *, validate_only: bool) -> None:
        if resource.resource_type == ConfigResourceType.BROKER_LOGGER and not resource.replaces:
            self._alter_loggers(resource, validate_only=validate_only)
        elif resource.resource_type == ConfigResourceType.BROKER:
            await self._alter_broker(resource, slices, validate_only=validate_only)
        elif resource.resource_type == ConfigResourceType.CLIENT_METRICS:
            raise ApiError(
                ErrorCode.INVALID_REQUEST,
                "AlterConfigs is only supported for topics and brokers, but resource type is CLIENT_METRICS",
            )
        else:
            raise ApiError(ErrorCode.INVALID_REQUEST, f"Unknown resource type {resource.resource_type}")

    async def _judge_topic(self, resource: Resource, slices: Slices) -> Mapping[str, str]:
        """Compute the new overrides of the topic. Raises ApiError."""
        topic = resource.name
        if not topic:
            raise ApiError(ErrorCode.INVALID_REQUEST, "Default topic resources are not allowed.")
        before = self._metadata.image.config(ConfigResourceType.TOPIC, topic)
        overrides = await _applied(resource, before, TOPIC_KEYS.get, slices)
        if topic not in self._metadata.image.topics:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{topic}' does not exist.")
        self._config_service.validate_topic_change(topic, overrides)
        return overrides

    async def _alter_broker(self, resource: Resource, slices: Slices, *, validate_only: bool) -> None:
        own_id = self._config_service.broker_id
        name = CLUSTER_DEFAULT
        if resource.name:
            if parse_id(resource.name, "Node id") != own_id:
                raise ApiError(
                    ErrorCode.INVALID_REQUEST,
                    f"Unexpected broker id, expected {own_id}, but received {resource.name}",
                )
            name = str(own_id)
        overrides = await _applied(resource, self._config_service.dynamic_of(name), declared_key, slices)
        await self._config_service.validate_broker(overrides, per_broker=bool(name))
        kept = self._config_service.as_kept(overrides)
        if not validate_only:
            errors = await self._store.alter_configs({(ConfigResourceType.BROKER, name): kept})
            for error in errors.values():
                raise detached(error)

    def _alter_loggers(self, resource: Resource, *, validate_only: bool) -> None:
        own_id = self._config_service.broker_id
        if parse_id(resource.name, "Node id") != own_id:
            raise ApiError(
                ErrorCode.INVALID_REQUEST, f"Unexpected node id. Expected {own_id}, but received {resource.name}"
            )
        for change in resource.changes:
            self._check_logger(change)
        if validate_only:
            return
        for change in resource.changes:
            if change.operation == AlterConfigOp.SET and change.value is not None:
                self._logger_levels.set_level(change.name, change.value)
            else:
                self._logger_levels.unset_level(change.name)

    def _check_logger(self, change: Change) -> None:
        operation = operation_of(change)
        if operation in (AlterConfigOp.APPEND, AlterConfigOp.SUBTRACT):
            raise ApiError(
                ErrorCode.INVALID_REQUEST, f"{operation.name} operation is not allowed for the BROKER_LOGGER resource"
            )
        if not self._logger_levels.exists(change.name):
            raise ApiError(ErrorCode.INVALID_CONFIG, f"Logger {change.name} does not exist!")
        if operation is AlterConfigOp.SET and change.value not in LEVELS:
            raise ApiError(
                ErrorCode.INVALID_CONFIG,
                f"Cannot set the log level of {change.name} to {change.value} as it is not a supported log level. "
                f"Valid log levels are {', '.join(LEVELS)}",
            )
        if operation is AlterConfigOp.DELETE and change.name == ROOT:
            raise ApiError(ErrorCode.INVALID_REQUEST, f"Removing the log level of the {ROOT} logger is not allowed")


async def _check_changes(resource: Resource, slices: Slices) -> None:
    """Raise ApiError(INVALID_REQUEST) for conflicting or empty changes."""
    names: set[str] = set()
    nulls: list[str] = []
    async for change in in_slices(resource.changes, slices):
        names.add(change.name)
        if change.value is None and change.operation != AlterConfigOp.DELETE:
            nulls.append(change.name)
    if len(names) != len(resource.changes):
        raise ApiError(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
    if nulls:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {', '.join(nulls)}")


async def _applied(
    resource: Resource, overrides: Mapping[str, str], declared: Callable[[str], ConfigKey | None], slices: Slices
) -> dict[str, str]:
    """Compute a resource's overrides after its changes. Raises as `apply`."""
    result = {} if resource.replaces else dict(overrides)
    async for change in in_slices(resource.changes, slices):
        apply(change, result, declared)
    return result


class _DescribedConfigs:
    """Descriptions in the form that a request asks for, each built once for all resources that share it."""

    def __init__(self, request: DescribeConfigsRequest) -> None:
        self.has_unknown_type = any(resource.resource_type not in _KNOWN_TYPES for resource in request.resources)
        self._synonyms = request.include_synonyms
        self._documentation = request.include_documentation
        self._version: int | None = None
        self._made: dict[tuple[int, frozenset[str]], tuple[Sequence[DescribedConfig], list[_ShownConfig]]] = {}

    def encode_for(self, version: int) -> None:
        """Return encoded arrays from now on."""
        self._version = version

    def of(self, described: Sequence[DescribedConfig], wanted: frozenset[str]) -> list[_ShownConfig]:
        """The keys in `wanted`, or all if it is empty."""
        key = (id(described), wanted)
        known = self._made.get(key)
        if known is None:
            shown = [self._shown(each) for each in described if not wanted or each.name in wanted]
            if self._version is not None:
                shown = ItemEncoder(_ShownConfig, DescribeConfigsResponse, self._version, shown).array()
            known = self._made[key] = (described, shown)  # the reference also keeps the id from being reused
        return known[1]

    def _shown(self, each: DescribedConfig) -> _ShownConfig:
        synonyms = [
            DescribeConfigsResponse.DescribeConfigsSynonym(name=name, value=value, source=source)
            for name, value, source in (each.synonyms if self._synonyms else ())
        ]
        # Loggers have empty documentation even if it was not requested.
        documentation = each.documentation if self._documentation or each.documentation == "" else None
        return _ShownConfig(
            name=each.name,
            value=each.value,
            read_only=each.read_only,
            config_source=each.source,
            is_sensitive=each.sensitive,
            synonyms=synonyms,
            config_type=each.config_type,
            documentation=documentation,
        )


def _refused(resource: Resource, error: ApiError) -> AlterResult:
    names = {int(each): each.name for each in ConfigResourceType}
    kind = names.get(resource.resource_type, f"resource type {resource.resource_type}")
    logger.info("Refused to alter %s %r: %s", kind, resource.name, error)
    # Kafka omits the message of an unexpected error.
    unforeseen = error.error_code is ErrorCode.UNKNOWN_SERVER_ERROR
    return AlterResult(error.error_code, None if unforeseen else error.message)
