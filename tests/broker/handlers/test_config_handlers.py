"""Describing and altering configurations, tested without a broker (tests/parity compares with Apache Kafka)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Mapping

import pytest

from broker.handlers.configs import ConfigHandlers
from broker.metadata.config_service import ConfigService
from broker.metadata.metadata_cache import MetadataCache
from broker.network.registry import RequestContext
from cluster.controller.commands import CommandFence, TopicStates, UpdateMetadata
from cluster.metadata_image import ConfigResource, MetadataImage, TopicImage
from config.broker_config import BrokerConfig
from environment.logging_setup import LoggerLevels
from protocol.config_resources import ConfigResourceType, ConfigSource
from protocol.errors import ApiError, ErrorCode
from protocol.messages.configs import (
    AlterConfigsRequest,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    IncrementalAlterConfigsRequest,
)
from tests.kit.environment import ManualClock, uuid_of

TOPIC, BROKER, LOGGER = 2, 4, 8
SET, DELETE, APPEND, SUBTRACT = range(4)
CONTEXT = RequestContext(1, "test", "127.0.0.1", "PLAINTEXT")


class Store:
    """The controller's part: keeps overrides in a cache."""

    def __init__(self) -> None:
        image = MetadataImage().with_topics([TopicImage("t", uuid_of(1), ())])
        self.cache = MetadataCache(CommandFence(), image)

    @property
    def image(self) -> MetadataImage:
        return self.cache.image

    async def alter_configs(
        self, changes: Mapping[ConfigResource, Mapping[str, str]]
    ) -> Mapping[ConfigResource, ApiError]:
        await asyncio.sleep(0)
        self.cache.update_configs(changes)
        return {}


class Broker:
    """Store, service and handlers of broker 0."""

    def __init__(self, **properties: str) -> None:
        self.store = Store()
        static = BrokerConfig({"broker.id": "0", **{key.replace("_", "."): text for key, text in properties.items()}})
        self.service = ConfigService(static, self.store.cache)
        self.store.cache.add_listener(self.service.image_changed)
        self.handlers = ConfigHandlers(self.service, self.store.cache, self.store, LoggerLevels(), ManualClock())

    def incremental(
        self, resource_type: int, name: str, *changes: tuple[str, int, str | None], validate_only: bool = False
    ) -> tuple[ErrorCode, str | None]:
        request = IncrementalAlterConfigsRequest(
            resources=[
                IncrementalAlterConfigsRequest.AlterConfigsResource(
                    resource_type=resource_type,
                    resource_name=name,
                    configs=[
                        IncrementalAlterConfigsRequest.AlterableConfig(name=key, config_operation=operation, value=text)
                        for key, operation, text in changes
                    ],
                )
            ],
            validate_only=validate_only,
        )
        answer = asyncio.run(self.handlers.incremental_alter_configs(CONTEXT, request)).responses[0]
        return ErrorCode(answer.error_code), answer.error_message

    def replace(self, resource_type: int, name: str, configs: dict[str, str]) -> ErrorCode:
        request = AlterConfigsRequest(
            resources=[
                AlterConfigsRequest.AlterConfigsResource(
                    resource_type=resource_type,
                    resource_name=name,
                    configs=[AlterConfigsRequest.AlterableConfig(name=key, value=configs[key]) for key in configs],
                )
            ],
            validate_only=False,
        )
        return ErrorCode(asyncio.run(self.handlers.alter_configs(CONTEXT, request)).responses[0].error_code)

    def describe(self, resource_type: int, name: str, key: str) -> tuple[str | None, int, list[tuple[str, int]]]:
        """(value, source, [(name of a synonym, its source)])."""
        request = DescribeConfigsRequest(
            resources=[
                DescribeConfigsRequest.DescribeConfigsResource(
                    resource_type=resource_type, resource_name=name, configuration_keys=[key]
                )
            ],
            include_synonyms=True,
        )
        described = self.handlers.describe_configs(CONTEXT, request).results[0].configs[0]
        return described.value, described.config_source, [(each.name, each.source) for each in described.synonyms]


def test_a_topic_value_and_where_it_comes_from() -> None:
    broker = Broker(log_segment_bytes="5000")
    assert broker.describe(TOPIC, "t", "segment.bytes") == (
        "5000", ConfigSource.STATIC_BROKER_CONFIG, [("log.segment.bytes", 4), ("log.segment.bytes", 5)]
    )  # fmt: skip
    broker.incremental(TOPIC, "t", ("segment.bytes", SET, "6000"))
    assert broker.describe(TOPIC, "t", "segment.bytes")[:2] == ("6000", ConfigSource.DYNAMIC_TOPIC_CONFIG)
    broker.incremental(TOPIC, "t", ("segment.bytes", DELETE, None))
    assert broker.describe(TOPIC, "t", "segment.bytes")[:2] == ("5000", ConfigSource.STATIC_BROKER_CONFIG)


def test_a_weaker_synonym_alone_is_not_told() -> None:
    broker = Broker(log_retention_hours="1")
    assert broker.describe(TOPIC, "t", "retention.ms") == ("3600000", ConfigSource.DEFAULT_CONFIG, [])
    broker.incremental(BROKER, "", ("log.retention.ms", SET, "500"))
    assert broker.describe(TOPIC, "t", "retention.ms") == (
        "500",
        ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG,
        [("log.retention.ms", 3), ("log.retention.hours", 4), ("log.retention.hours", 5)],
    )


def test_this_brokers_own_value_is_stronger_than_the_default_of_all() -> None:
    broker = Broker()
    broker.incremental(BROKER, "", ("log.index.interval.bytes", SET, "1"))
    broker.incremental(BROKER, "0", ("log.index.interval.bytes", SET, "2"))
    assert broker.describe(BROKER, "0", "log.index.interval.bytes")[:2] == ("2", ConfigSource.DYNAMIC_BROKER_CONFIG)
    assert broker.describe(BROKER, "", "log.index.interval.bytes")[:2] == (
        "1",
        ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG,
    )
    assert broker.service.log_config("t").index_interval_bytes == 2


def test_changes_reach_those_who_asked() -> None:
    broker = Broker()
    seen: list[int] = []
    broker.service.on_change(lambda config: seen.append(config.max_connections))
    broker.incremental(BROKER, "0", ("max.connections", SET, "7"))
    broker.incremental(TOPIC, "t", ("retention.ms", SET, "7"))
    broker.incremental(BROKER, "0", ("max.connections", DELETE, None))
    assert seen == [7, 2**31 - 1]


def test_validate_only_keeps_nothing() -> None:
    broker = Broker()
    assert broker.incremental(TOPIC, "t", ("retention.ms", SET, "1"), validate_only=True) == (ErrorCode.NONE, None)
    assert not broker.store.image.configs


def test_lists_grow_and_shrink() -> None:
    broker = Broker()
    broker.incremental(TOPIC, "t", ("cleanup.policy", APPEND, "compact"))
    assert broker.describe(TOPIC, "t", "cleanup.policy")[0] == "delete,compact"
    broker.incremental(TOPIC, "t", ("cleanup.policy", SUBTRACT, "delete"))
    assert broker.describe(TOPIC, "t", "cleanup.policy")[0] == "compact"


def test_replacing_drops_the_other_overrides() -> None:
    broker = Broker()
    broker.incremental(TOPIC, "t", ("retention.ms", SET, "1"))
    assert broker.replace(TOPIC, "t", {"segment.ms": "5"}) is ErrorCode.NONE
    assert broker.store.image.config(ConfigResourceType.TOPIC, "t") == {"segment.ms": "5"}


@pytest.mark.parametrize(
    ("resource", "change", "code", "message"),
    [
        ((TOPIC, "t"), ("retention.ms", SET, "x"), ErrorCode.INVALID_CONFIG, "Not a number of type LONG"),
        ((TOPIC, "t"), ("no.such", SET, "x"), ErrorCode.INVALID_CONFIG, "Unknown topic config name: no.such"),
        ((TOPIC, "t"), ("retention.ms", APPEND, "x"), ErrorCode.INVALID_CONFIG, "append is not allowed"),
        ((TOPIC, "t"), ("retention.ms", SET, None), ErrorCode.INVALID_REQUEST, "Null value not supported"),
        ((TOPIC, "t"), ("retention.ms", 9, "1"), ErrorCode.UNKNOWN_SERVER_ERROR, "None"),
        ((TOPIC, "missing"), ("retention.ms", SET, "1"), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "does not exist"),
        ((TOPIC, ""), ("retention.ms", SET, "1"), ErrorCode.INVALID_REQUEST, "Default topic resources"),
        ((BROKER, "1"), ("max.connections", SET, "1"), ErrorCode.INVALID_REQUEST, "Unexpected broker id"),
        ((BROKER, "x"), ("max.connections", SET, "1"), ErrorCode.INVALID_REQUEST, "must be an integer"),
        ((BROKER, "0"), ("num.partitions", SET, "1"), ErrorCode.INVALID_REQUEST, "Cannot update these configs dynamic"),
        ((BROKER, ""), ("listeners", SET, "A://:1"), ErrorCode.INVALID_REQUEST, "broker id must be specified"),
        ((BROKER, "0"), ("ssl.keystore.type", SET, "PEM"), ErrorCode.INVALID_REQUEST, "only per-listener"),
        ((BROKER, "0"), ("log.retention.ms", SET, "0"), ErrorCode.INVALID_REQUEST, "requirement failed"),
        ((BROKER, "0"), ("sasl.enabled.mechanisms", SET, "PLAIN"), ErrorCode.INVALID_REQUEST, "Cannot update"),
        ((BROKER, "0"), ("num.io.threads", SET, "100"), ErrorCode.INVALID_REQUEST, "greater than double the current"),
        (
            (BROKER, "0"),
            ("log.cleaner.threads", SET, "0"),
            ErrorCode.INVALID_REQUEST,
            "requirement failed: log.cleaner",
        ),
        (
            (BROKER, "0"),
            ("log.cleaner.threads", SET, "3"),
            ErrorCode.INVALID_REQUEST,
            "to more than double the current",
        ),
        (
            (BROKER, "0"),
            ("log.cleaner.dedupe.buffer.size", SET, "1048576"),
            ErrorCode.INVALID_REQUEST,
            "requirement failed: log.cleaner.dedupe.buffer.size must be at least 1MB per cleaner thread.",
        ),
        (
            (BROKER, "0"),
            ("log.cleaner.io.buffer.size", SET, "-1"),
            ErrorCode.INVALID_REQUEST,
            "Invalid value -1 for configuration log.cleaner.io.buffer.size: Value must be at least 0",
        ),
        (
            (BROKER, "0"),
            ("log.cleaner.enable", SET, "false"),
            ErrorCode.INVALID_REQUEST,
            "dynamically: Set(log.cleaner.",
        ),
        (
            (TOPIC, "t"),
            ("min.cleanable.dirty.ratio", SET, "1.5"),
            ErrorCode.INVALID_CONFIG,
            "Invalid value 1.5 for configuration min.cleanable.dirty.ratio: Value must be no more than 1",
        ),
        ((LOGGER, "0"), ("no.such.logger", SET, "INFO"), ErrorCode.INVALID_CONFIG, "does not exist"),
        ((LOGGER, "0"), ("root", SET, "LOUD"), ErrorCode.INVALID_CONFIG, "not a supported log level"),
        ((LOGGER, "0"), ("root", DELETE, None), ErrorCode.INVALID_REQUEST, "Removing the log level"),
        ((16, "x"), ("a", SET, "b"), ErrorCode.INVALID_REQUEST, "CLIENT_METRICS"),
        ((99, "x"), ("a", SET, "b"), ErrorCode.INVALID_REQUEST, "Unknown resource type 99"),
    ],
)
def test_refusals(
    resource: tuple[int, str], change: tuple[str, int, str | None], code: ErrorCode, message: str
) -> None:
    broker = Broker()
    error_code, error_message = broker.incremental(*resource, change)
    assert error_code is code
    assert message in str(error_message)
    assert not broker.store.image.configs


def test_the_log_names_the_kind_of_a_resource_that_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    broker = Broker()
    with caplog.at_level(logging.INFO):
        broker.incremental(BROKER, "1", ("max.connections", SET, "1"))
        broker.incremental(99, "x", ("a", SET, "b"))
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        "Refused to alter BROKER '1'", "Refused to alter resource type 99 'x'",
    ]  # fmt: skip


def test_a_stored_value_that_cannot_be_used_is_ignored_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    broker = Broker()
    asyncio.run(
        broker.store.alter_configs({(BROKER, "0"): {"max.connections": "many", "log.index.interval.bytes": "7"}})
    )
    assert broker.service.current.max_connections == 2**31 - 1
    assert broker.describe(BROKER, "0", "log.index.interval.bytes")[0] == "7"
    assert "max.connections is ignored" in caplog.text


def test_secrets_and_unknown_keys_are_not_shown() -> None:
    broker = Broker(my_key="secret")
    assert broker.describe(BROKER, "0", "my.key") == (None, ConfigSource.STATIC_BROKER_CONFIG, [("my.key", 4)])
    shown = {each.name: each for each in broker.service.describe_broker()}
    assert shown["my.key"].sensitive
    assert shown["ssl.keystore.password"].sensitive


def test_levels_of_loggers() -> None:
    name = "kafka.test.SomeLogger"
    logger = logging.getLogger(name)
    broker = Broker()
    try:
        for level, number in (("TRACE", 5), ("DEBUG", 10), ("WARN", 30), ("FATAL", 50)):
            assert broker.incremental(LOGGER, "0", (name, SET, level))[0] is ErrorCode.NONE
            assert logger.level == number
            assert broker.describe(LOGGER, "0", name)[:2] == (level, ConfigSource.DYNAMIC_BROKER_LOGGER_CONFIG)
        broker.incremental(LOGGER, "0", (name, DELETE, None))
        assert logger.level == logging.NOTSET
        assert broker.describe(LOGGER, "0", name)[0] == broker.describe(LOGGER, "0", "root")[0]
    finally:
        logger.setLevel(logging.NOTSET)


def test_two_changes_at_once_do_not_lose_each_other() -> None:
    broker = Broker()

    def request(key: str) -> IncrementalAlterConfigsRequest:
        change = IncrementalAlterConfigsRequest.AlterableConfig(name=key, config_operation=SET, value="5")
        resource = IncrementalAlterConfigsRequest.AlterConfigsResource(
            resource_type=TOPIC, resource_name="t", configs=[change]
        )
        return IncrementalAlterConfigsRequest(resources=[resource], validate_only=False)

    async def both() -> None:
        handle = broker.handlers.incremental_alter_configs
        await asyncio.gather(*(handle(CONTEXT, request(key)) for key in ("retention.ms", "segment.ms")))

    asyncio.run(both())
    assert broker.store.image.config(TOPIC, "t") == {"retention.ms": "5", "segment.ms": "5"}


class CountingClock(ManualClock):
    """Every reading advances the time."""

    def monotonic_s(self) -> float:
        self.now_s += 0.004
        return self.now_s

    now_s = 0.0


def test_what_many_resources_share_is_described_once_and_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker()
    topics = [TopicImage(f"t{number}", uuid_of(number + 1), ()) for number in range(100)]
    states = tuple(TopicStates(each.name, each.topic_id, ()) for each in topics)
    broker.store.cache.update_metadata(UpdateMetadata(0, 1, -1, topics=states))
    asyncio.run(broker.store.alter_configs({(TOPIC, "t7"): {"retention.ms": "5"}}))
    described = []
    monkeypatch.setattr(broker.service, "_describe_topic", lambda *given: described.append(given) or [])
    handlers = ConfigHandlers(broker.service, broker.store.cache, broker.store, LoggerLevels(), CountingClock())
    resources = [
        DescribeConfigsRequest.DescribeConfigsResource(
            resource_type=TOPIC, resource_name=each.name, configuration_keys=None
        )
        for each in (*topics, *topics)
    ]

    async def scenario() -> int:
        answer = handlers.describe_configs(CONTEXT, DescribeConfigsRequest(resources=resources))
        assert isinstance(answer, Awaitable)
        asked = asyncio.ensure_future(answer)
        turns = 0
        while not asked.done():
            turns += 1
            await asyncio.sleep(0)
        response = DescribeConfigsResponse.decode(asked.result().to_bytes(1), 1)
        assert [each.resource_name for each in response.results] == [each.resource_name for each in resources]
        return turns

    assert asyncio.run(scenario()) >= 100
    assert len(described) == 2, "one for each set of overrides"
