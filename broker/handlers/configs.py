"""DescribeConfigs, AlterConfigs (KIP-133) and IncrementalAlterConfigs (KIP-339) of topics, brokers and loggers."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from broker.config_service import CLUSTER_DEFAULT, ConfigService, DescribedConfig, declared_key
from broker.handlers.topics import TopicConfigEntry
from broker.logger_levels import LEVELS, ROOT, LoggerLevels
from broker.registry import RequestContext, api
from cluster.metadata_image import MetadataImage
from config.definitions import ConfigKey, ConfigType, value_to_text
from config.topic_config import TOPIC_KEYS
from protocol.api_keys import ApiKey
from protocol.config_resources import AlterConfigOp, ConfigResourceType, ConfigSource
from protocol.errors import ApiError, ErrorCode
from protocol.messages import (
    AlterConfigsRequest,
    AlterConfigsResponse,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from protocol.topic_partition import validate_topic_name

logger = logging.getLogger("kafka.server.ConfigAdminManager")

_DescribeResult = DescribeConfigsResponse.DescribeConfigsResult


_DESCRIBABLE = frozenset(ConfigResourceType)


class Change(NamedTuple):
    """One key of a request; `operation` is a number that nobody has checked yet."""

    name: str
    operation: int
    value: str | None


class Resource(NamedTuple):
    """One resource of a request with its changes. `replaces`: all other keys go back to their defaults."""

    resource_type: int
    name: str
    changes: Sequence[Change]
    replaces: bool = False


class Outcome(NamedTuple):
    """What is answered for one resource."""

    error_code: ErrorCode
    message: str | None


class ConfigStore(Protocol):
    """Keeps overrides: the controller. `alter_configs` replaces those of a topic or broker ("" for all brokers)."""

    @property
    def image(self) -> MetadataImage: ...

    async def alter_configs(self, resource_type: int, name: str, new_config: Mapping[str, str]) -> None: ...


class ConfigHandlers:
    """Shows and changes configurations."""

    def __init__(self, config_service: ConfigService, store: ConfigStore, logger_levels: LoggerLevels) -> None:
        self._config_service = config_service
        self._store = store
        self._logger_levels = logger_levels
        # Changes are read-modify-write: one request at a time.
        self._changing = asyncio.Lock()

    def describe_topic_config(self, overrides: Mapping[str, str]) -> list[TopicConfigEntry]:
        """What CreateTopics tells about the new topic's configuration."""
        return [
            TopicConfigEntry(each.name, each.value, each.source, each.read_only, each.sensitive)
            for each in self._config_service.describe_topic(overrides)
        ]

    # -- DescribeConfigs -----------------------------------------------------------------------------------------------

    @api(ApiKey.DESCRIBE_CONFIGS, versions=(0, 4))
    def describe_configs(
        self,
        context: RequestContext,  # noqa: ARG002
        request: DescribeConfigsRequest,
    ) -> DescribeConfigsResponse:
        """The asked keys of each resource; none, or null, mean all. An unknown type fails the whole request."""
        unknown = any(resource.resource_type not in _DESCRIBABLE for resource in request.resources)
        results = []
        for resource in request.resources:
            result = _DescribeResult(
                error_code=ErrorCode.NONE,
                error_message="",
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
                configs=[],
            )
            try:
                if unknown:
                    raise ApiError(ErrorCode.INVALID_REQUEST, "A resource of the request has an unknown type.")
                described = self._describe(ConfigResourceType(resource.resource_type), resource.resource_name)
                wanted = frozenset(resource.configuration_keys or ())
                result.configs = [_shown(each, request) for each in described if not wanted or each.name in wanted]
            except ApiError as error:
                result.error_code, result.error_message = error.error_code, error.message
            results.append(result)
        return DescribeConfigsResponse(throttle_time_ms=0, results=results)

    def _describe(self, resource_type: ConfigResourceType, name: str) -> Iterable[DescribedConfig]:
        if resource_type is ConfigResourceType.TOPIC:
            validate_topic_name(name)
            if name not in self._store.image.topics:
                raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "")
            return self._config_service.describe_topic(self._store.image.config(ConfigResourceType.TOPIC, name))
        if resource_type is ConfigResourceType.CLIENT_METRICS:
            raise ApiError(ErrorCode.INVALID_REQUEST, "Config type client-metrics is only supported on KRaft clusters")
        if resource_type is ConfigResourceType.BROKER and not name:
            return self._config_service.describe_cluster_default()
        own_id = self._config_service.broker_id
        if not name:
            raise ApiError(ErrorCode.INVALID_REQUEST, "Broker id must not be empty")
        if _parse_id(name, "Broker id") != own_id:
            or_all = " or empty string," if resource_type is ConfigResourceType.BROKER else ""
            raise ApiError(
                ErrorCode.INVALID_REQUEST, f"Unexpected broker id, expected {own_id}{or_all} but received {name}"
            )
        if resource_type is ConfigResourceType.BROKER:
            return self._config_service.describe_broker()
        return self._describe_loggers()

    def _describe_loggers(self) -> Iterable[DescribedConfig]:
        source = ConfigSource.DYNAMIC_BROKER_LOGGER_CONFIG
        for name in self._logger_levels.names():
            level = self._logger_levels.level(name)
            yield DescribedConfig(name, level, source, read_only=False, sensitive=False, synonyms=(), config_type=0,
                                  documentation="")  # fmt: skip

    # -- AlterConfigs, IncrementalAlterConfigs -------------------------------------------------------------------------

    @api(ApiKey.ALTER_CONFIGS, versions=(0, 2))
    async def alter_configs(
        self,
        context: RequestContext,  # noqa: ARG002
        request: AlterConfigsRequest,
    ) -> AlterConfigsResponse:
        """Replace all overrides of each resource; one that is refused does not hold back the others."""
        resources = [
            Resource(
                each.resource_type,
                each.resource_name,
                [Change(config.name, AlterConfigOp.SET, config.value) for config in each.configs],
                replaces=True,
            )
            for each in request.resources
        ]
        outcomes = await self._alter_all(resources, validate_only=request.validate_only)
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

    @api(ApiKey.INCREMENTAL_ALTER_CONFIGS, versions=(0, 1))
    async def incremental_alter_configs(
        self,
        context: RequestContext,  # noqa: ARG002
        request: IncrementalAlterConfigsRequest,
    ) -> IncrementalAlterConfigsResponse:
        """Change single keys of each resource; one that is refused does not hold back the others."""
        resources = [
            Resource(
                each.resource_type,
                each.resource_name,
                [Change(config.name, config.config_operation, config.value) for config in each.configs],
            )
            for each in request.resources
        ]
        outcomes = await self._alter_all(resources, validate_only=request.validate_only)
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

    async def _alter_all(self, resources: Sequence[Resource], *, validate_only: bool) -> list[Outcome]:
        times = Counter((resource.resource_type, resource.name) for resource in resources)
        outcomes = []
        async with self._changing:
            for resource in resources:
                try:
                    if times[resource.resource_type, resource.name] > 1:
                        raise ApiError(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
                    await self._alter(resource, validate_only=validate_only)
                    outcomes.append(Outcome(ErrorCode.NONE, None))
                except ApiError as error:
                    logger.info("Refused to alter %s %r: %s", resource.resource_type, resource.name, error)
                    # Kafka has no message for what it did not foresee.
                    unforeseen = error.error_code is ErrorCode.UNKNOWN_SERVER_ERROR
                    outcomes.append(Outcome(error.error_code, None if unforeseen else error.message))
        return outcomes

    async def _alter(self, resource: Resource, *, validate_only: bool) -> None:
        _check_changes(resource)
        if resource.resource_type == ConfigResourceType.BROKER_LOGGER and not resource.replaces:
            self._alter_loggers(resource, validate_only=validate_only)
        elif resource.resource_type == ConfigResourceType.TOPIC:
            await self._alter_topic(resource, validate_only=validate_only)
        elif resource.resource_type == ConfigResourceType.BROKER:
            await self._alter_broker(resource, validate_only=validate_only)
        elif resource.resource_type == ConfigResourceType.CLIENT_METRICS:
            raise ApiError(
                ErrorCode.INVALID_REQUEST,
                "AlterConfigs is only supported for topics and brokers, but resource type is CLIENT_METRICS",
            )
        else:
            raise ApiError(ErrorCode.INVALID_REQUEST, f"Unknown resource type {resource.resource_type}")

    async def _alter_topic(self, resource: Resource, *, validate_only: bool) -> None:
        topic = resource.name
        if not topic:
            raise ApiError(ErrorCode.INVALID_REQUEST, "Default topic resources are not allowed.")
        overrides = _applied(resource, self._store.image.config(ConfigResourceType.TOPIC, topic), TOPIC_KEYS.get)
        if topic not in self._store.image.topics:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{topic}' does not exist.")
        self._config_service.validate_topic_change(topic, overrides)
        if not validate_only:
            await self._store.alter_configs(ConfigResourceType.TOPIC, topic, overrides)

    async def _alter_broker(self, resource: Resource, *, validate_only: bool) -> None:
        own_id = self._config_service.broker_id
        name = CLUSTER_DEFAULT
        if resource.name:
            if _parse_id(resource.name, "Node id") != own_id:
                raise ApiError(
                    ErrorCode.INVALID_REQUEST,
                    f"Unexpected broker id, expected {own_id}, but received {resource.name}",
                )
            name = str(own_id)
        overrides = _applied(resource, self._store.image.config(ConfigResourceType.BROKER, name), declared_key)
        self._config_service.validate_broker(overrides, per_broker=bool(name))
        if not validate_only:
            await self._store.alter_configs(ConfigResourceType.BROKER, name, overrides)

    def _alter_loggers(self, resource: Resource, *, validate_only: bool) -> None:
        own_id = self._config_service.broker_id
        if _parse_id(resource.name, "Node id") != own_id:
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
        operation = _operation(change)
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


def _shown(
    each: DescribedConfig, request: DescribeConfigsRequest
) -> DescribeConfigsResponse.DescribeConfigsResourceResult:
    synonyms = [
        DescribeConfigsResponse.DescribeConfigsSynonym(name=name, value=value, source=source)
        for name, value, source in (each.synonyms if request.include_synonyms else ())
    ]
    # Loggers have an empty documentation even when none is asked for.
    documentation = each.documentation if request.include_documentation or each.documentation == "" else None
    return DescribeConfigsResponse.DescribeConfigsResourceResult(
        name=each.name,
        value=each.value,
        read_only=each.read_only,
        config_source=each.source,
        is_sensitive=each.sensitive,
        synonyms=synonyms,
        config_type=each.config_type,
        documentation=documentation,
    )


def _check_changes(resource: Resource) -> None:
    names = [change.name for change in resource.changes]
    if len(set(names)) != len(names):
        raise ApiError(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
    nulls = [
        change.name for change in resource.changes if change.value is None and change.operation != AlterConfigOp.DELETE
    ]
    if nulls:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {', '.join(nulls)}")


class _Lookup(Protocol):
    def __call__(self, name: str, /) -> ConfigKey | None: ...


def _applied(resource: Resource, overrides: Mapping[str, str], declared: _Lookup) -> dict[str, str]:
    """The overrides after the changes (Kafka's `ConfigAdminManager.prepareIncrementalConfigs`)."""
    result = {} if resource.replaces else dict(overrides)
    for change in resource.changes:
        operation = _operation(change)
        if operation is AlterConfigOp.DELETE or change.value is None:
            result.pop(change.name, None)
        elif operation is AlterConfigOp.SET:
            result[change.name] = change.value
        else:
            key = declared(change.name)
            if key is None:
                raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, f"{change.name} is not known, so it is no list")
            if key.type is not ConfigType.LIST:
                raise ApiError(
                    ErrorCode.INVALID_CONFIG,
                    f"Config value {operation.name.lower()} is not allowed for config key: {change.name}",
                )
            before = result.get(change.name, value_to_text(key.default) or "")
            result[change.name] = _list_after(operation, before, change.value)
    return result


def _list_after(operation: AlterConfigOp, before: str, given: str) -> str:
    elements = [element for element in before.split(",") if element]
    if operation is AlterConfigOp.APPEND:
        elements.extend(element for element in given.split(",") if element not in elements)
    else:
        for element in given.split(","):
            if element in elements:
                elements.remove(element)
    return ",".join(elements)


def _operation(change: Change) -> AlterConfigOp:
    """Raises ApiError(UNKNOWN_SERVER_ERROR), as Kafka does, for a number that stands for nothing."""
    try:
        return AlterConfigOp(change.operation)
    except ValueError:
        raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, f"no operation has the number {change.operation}") from None


def _parse_id(text: str, what: str) -> int:
    """A broker id as `Integer.parseInt` reads it."""
    sign, digits = (text[0], text[1:]) if text[:1] in ("+", "-") else ("", text)
    if not digits.isascii() or not digits.isdigit():
        raise ApiError(ErrorCode.INVALID_REQUEST, f"{what} must be an integer, but it is: {text}")
    return int(sign + digits)
