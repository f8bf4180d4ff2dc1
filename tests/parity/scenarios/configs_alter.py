"""AlterConfigs and IncrementalAlterConfigs: what is accepted, what is refused and how, and the result."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from protocol.messages.configs import AlterConfigsRequest, DescribeConfigsRequest, IncrementalAlterConfigsRequest
from tests.parity.scenarios.configs_describe import BROKER, BROKER_LOGGER, TOPIC, describe
from tests.parity.subject import Subject, scenario

SET, DELETE, APPEND, SUBTRACT = range(4)
DYNAMIC_BROKER, DYNAMIC_DEFAULT = 2, 3
"""Sources of values: set for one broker, or for all."""
Change = tuple[str, int, str | None]


def incremental(
    b: Subject, *resources: tuple[int, str, list[Change]], version: int = 1, validate_only: bool = False
) -> None:
    """IncrementalAlterConfigs of (type, name, [(key, operation, value)])."""
    b.ask(_incremental(resources, validate_only), version)


def _incremental(
    resources: tuple[tuple[int, str, list[Change]], ...], validate_only: bool = False
) -> IncrementalAlterConfigsRequest:
    asked = [
        IncrementalAlterConfigsRequest.AlterConfigsResource(
            resource_type=resource_type,
            resource_name=name,
            configs=[
                IncrementalAlterConfigsRequest.AlterableConfig(name=key, config_operation=operation, value=value)
                for key, operation, value in changes
            ],
        )
        for resource_type, name, changes in resources
    ]
    return IncrementalAlterConfigsRequest(resources=asked, validate_only=validate_only)


def replace_all(
    b: Subject,
    *resources: tuple[int, str, dict[str, str | None]],
    version: int = 2,
    validate_only: bool = False,
) -> None:
    """AlterConfigs of (type, name, {key: value})."""
    asked = [
        AlterConfigsRequest.AlterConfigsResource(
            resource_type=resource_type,
            resource_name=name,
            configs=[AlterConfigsRequest.AlterableConfig(name=key, value=value) for key, value in configs.items()],
        )
        for resource_type, name, configs in resources
    ]
    b.ask(AlterConfigsRequest(resources=asked, validate_only=validate_only), version)


@contextlib.contextmanager
def restored(b: Subject, name: str, *keys: str) -> Iterator[None]:
    """Remove broker keys afterwards, so that other scenarios see the broker unchanged.

    Kafka answers before the change applies: this waits until the keys are gone.
    """
    try:
        yield
    finally:
        b.quietly(_incremental(((BROKER, name, [(key, DELETE, None) for key in keys]),)), 1)
        asked = DescribeConfigsRequest.DescribeConfigsResource(
            resource_type=BROKER, resource_name=name, configuration_keys=list(keys)
        )
        source = DYNAMIC_BROKER if name else DYNAMIC_DEFAULT

        def gone() -> bool:
            configs = b.quietly(DescribeConfigsRequest(resources=[asked]), 4).results[0].configs
            return all(each.config_source != source for each in configs)

        b.until(gone)


def await_value(b: Subject, resource_type: int, name: str, key: str, value: str | None) -> None:
    """Wait until the broker's answer to DescribeConfigs shows the change (Kafka applies it by a watch)."""
    asked = DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=resource_type, resource_name=name, configuration_keys=[key]
    )

    def shown() -> bool:
        configs = b.quietly(DescribeConfigsRequest(resources=[asked]), 4).results[0].configs
        return bool((configs[0].value if configs else None) == value)

    b.until(shown)


# -- topics, one change at a time --------------------------------------------------------------------------------------


@scenario
def set_and_delete(b: Subject) -> None:
    topic = b.topic(configs={"retention.ms": "5000", "segment.bytes": "20000"})
    incremental(b, (TOPIC, topic, [("retention.ms", SET, "7000"), ("segment.bytes", DELETE, None)]))
    await_value(b, TOPIC, topic, "retention.ms", "7000")
    describe(b, (TOPIC, topic), keys=["retention.ms", "segment.bytes"])


@scenario
def set_in_version_0(b: Subject) -> None:
    topic = b.topic()
    incremental(b, (TOPIC, topic, [("retention.ms", SET, "7000")]), version=0)
    await_value(b, TOPIC, topic, "retention.ms", "7000")


@scenario
def append_and_subtract(b: Subject) -> None:
    topic = b.topic()
    incremental(b, (TOPIC, topic, [("cleanup.policy", APPEND, "compact")]))
    await_value(b, TOPIC, topic, "cleanup.policy", "delete,compact")
    incremental(b, (TOPIC, topic, [("cleanup.policy", APPEND, "compact")]))
    incremental(b, (TOPIC, topic, [("cleanup.policy", SUBTRACT, "delete")]))
    await_value(b, TOPIC, topic, "cleanup.policy", "compact")
    describe(b, (TOPIC, topic), keys=["cleanup.policy"])


@scenario
def subtract_what_is_not_there(b: Subject) -> None:
    topic = b.topic(configs={"cleanup.policy": "compact"})
    incremental(b, (TOPIC, topic, [("cleanup.policy", SUBTRACT, "delete")]))
    describe(b, (TOPIC, topic), keys=["cleanup.policy"])


@scenario
def subtract_everything(b: Subject) -> None:
    topic = b.topic()
    incremental(b, (TOPIC, topic, [("cleanup.policy", SUBTRACT, "delete")]))
    describe(b, (TOPIC, topic), keys=["cleanup.policy"])


@scenario
def append_several(b: Subject) -> None:
    topic = b.topic()
    key = "leader.replication.throttled.replicas"
    incremental(b, (TOPIC, topic, [(key, APPEND, "0:0")]))
    incremental(b, (TOPIC, topic, [(key, APPEND, "0:0,1:0")]))
    describe(b, (TOPIC, topic), keys=[key])


@scenario
def append_to_what_is_no_list(b: Subject) -> None:
    topic = b.topic()
    incremental(b, (TOPIC, topic, [("retention.ms", APPEND, "5")]))
    incremental(b, (TOPIC, topic, [("retention.ms", SUBTRACT, "5")]))


@scenario
def append_to_unknown_key(b: Subject) -> None:
    incremental(b, (TOPIC, b.topic(), [("no.such.key", APPEND, "5")]))


@scenario
def unknown_operation(b: Subject) -> None:
    incremental(b, (TOPIC, b.topic(), [("retention.ms", 4, "5")]))


@scenario
def unknown_topic_key(b: Subject) -> None:
    topic = b.topic()
    incremental(b, (TOPIC, topic, [("no.such.key", SET, "5")]))
    incremental(b, (TOPIC, topic, [("no.such.key", DELETE, None)]))
    replace_all(b, (TOPIC, topic, {"no.such.key": "5"}))


@scenario
def bad_topic_values(b: Subject) -> None:
    topic = b.topic()
    for key, value in (
        ("retention.ms", "x"),
        ("retention.ms", "-2"),
        ("retention.ms", ""),
        ("retention.ms", "99999999999999999999"),
        ("segment.bytes", "13"),
        ("segment.bytes", "2147483648"),
        ("min.cleanable.dirty.ratio", "1.5"),
        ("min.cleanable.dirty.ratio", "half"),
        ("cleanup.policy", "shred"),
        ("cleanup.policy", "delete,,compact"),
        ("compression.type", "none"),
        ("compression.gzip.level", "10"),
        ("compression.zstd.level", "23"),
        ("preallocate", "yes"),
        ("message.timestamp.type", "createtime"),
        ("leader.replication.throttled.replicas", "a:b"),
        ("leader.replication.throttled.replicas", "none"),
        ("min.insync.replicas", "0"),
        ("flush.messages", "0"),
        ("message.format.version", "9.9"),
        ("remote.storage.enable", "true"),
    ):
        incremental(b, (TOPIC, topic, [(key, SET, value)]), validate_only=True)


@scenario
def good_topic_values(b: Subject) -> None:
    topic = b.topic()
    for key, value in (
        ("retention.ms", " 5 "),
        ("retention.ms", "+5"),
        ("preallocate", "TRUE"),
        ("cleanup.policy", " compact , delete "),
        ("cleanup.policy", ""),
        ("min.cleanable.dirty.ratio", "1e-5"),
        ("compression.zstd.level", "-5"),
        ("leader.replication.throttled.replicas", "*"),
    ):
        incremental(b, (TOPIC, topic, [(key, SET, value)]))
        await_value_of_any_kind(b, topic, key)


@scenario
def message_format_version(b: Subject) -> None:
    topic = b.topic()
    incremental(b, (TOPIC, topic, [("message.format.version", SET, "2.8")]))
    describe(b, (TOPIC, topic), keys=["message.format.version"])


def await_value_of_any_kind(b: Subject, topic: str, key: str) -> None:
    """Wait until the topic's key has an override, show it, and remove it."""
    asked = DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=TOPIC, resource_name=topic, configuration_keys=[key]
    )

    def source() -> int:
        return int(b.quietly(DescribeConfigsRequest(resources=[asked]), 4).results[0].configs[0].config_source)

    b.until(lambda: source() == 1)
    describe(b, (TOPIC, topic), keys=[key])
    b.quietly(_incremental(((TOPIC, topic, [(key, DELETE, None)]),)), 1)
    b.until(lambda: source() != 1)


@scenario
def contradicting_lags(b: Subject) -> None:
    topic = b.topic()
    changes: list[Change] = [("min.compaction.lag.ms", SET, "10"), ("max.compaction.lag.ms", SET, "5")]
    incremental(b, (TOPIC, topic, changes))


@scenario
def validate_only_changes_nothing(b: Subject) -> None:
    topic = b.topic()
    incremental(b, (TOPIC, topic, [("retention.ms", SET, "7000")]), validate_only=True)
    replace_all(b, (TOPIC, topic, {"retention.ms": "7000"}), validate_only=True)
    describe(b, (TOPIC, topic), keys=["retention.ms"])


@scenario
def missing_topics(b: Subject) -> None:
    name = b.name("missing")
    incremental(b, (TOPIC, name, [("retention.ms", SET, "7000")]))
    incremental(b, (TOPIC, name, [("retention.ms", SET, "x")]))
    replace_all(b, (TOPIC, name, {"retention.ms": "7000"}))
    for bad in ("", "a/b"):
        incremental(b, (TOPIC, bad, [("retention.ms", SET, "7000")]))
        replace_all(b, (TOPIC, bad, {"retention.ms": "7000"}))


@scenario
def duplicate_keys(b: Subject) -> None:
    topic = b.topic()
    incremental(b, (TOPIC, topic, [("retention.ms", SET, "1"), ("retention.ms", SET, "2")]))


@scenario
def duplicate_resources(b: Subject) -> None:
    topic = b.topic()
    # AlterConfigs is omitted: Kafka 3.9.1 fails while encoding the answer, and sends none.
    incremental(b, (TOPIC, topic, [("retention.ms", SET, "1")]), (TOPIC, topic, [("segment.ms", SET, "2")]))


@scenario
def null_values(b: Subject) -> None:
    topic = b.topic()
    incremental(b, (TOPIC, topic, [("retention.ms", SET, None), ("segment.ms", APPEND, None)]))
    replace_all(b, (TOPIC, topic, {"retention.ms": None, "segment.ms": "5"}))


@scenario
def delete_with_a_value(b: Subject) -> None:
    topic = b.topic(configs={"retention.ms": "5000"})
    incremental(b, (TOPIC, topic, [("retention.ms", DELETE, "17")]))
    await_value(b, TOPIC, topic, "retention.ms", "-1")


@scenario
def no_changes(b: Subject) -> None:
    topic = b.topic(configs={"retention.ms": "5000"})
    incremental(b, (TOPIC, topic, []))
    describe(b, (TOPIC, topic), keys=["retention.ms"])
    incremental(b)
    replace_all(b)


@scenario
def replace_all_overrides(b: Subject) -> None:
    topic = b.topic(configs={"retention.ms": "5000", "segment.bytes": "20000"})
    replace_all(b, (TOPIC, topic, {"segment.ms": "60000"}))
    await_value(b, TOPIC, topic, "segment.ms", "60000")
    describe(b, (TOPIC, topic), keys=["retention.ms", "segment.bytes", "segment.ms"])
    replace_all(b, (TOPIC, topic, {}))
    await_value(b, TOPIC, topic, "segment.ms", "604800000")


@scenario
def replace_in_every_version(b: Subject) -> None:
    topic = b.topic()
    for version in range(3):
        replace_all(b, (TOPIC, topic, {"segment.ms": str(1000 + version)}), version=version)
        await_value(b, TOPIC, topic, "segment.ms", str(1000 + version))


@scenario
def replace_with_bad_values(b: Subject) -> None:
    topic = b.topic()
    replace_all(b, (TOPIC, topic, {"retention.ms": "x"}))
    replace_all(b, (TOPIC, topic, {"segment.bytes": "1"}))
    replace_all(b, (TOPIC, topic, {"cleanup.policy": "shred"}))


@scenario
def one_good_one_bad_resource(b: Subject) -> None:
    good, bad = b.topic("good"), b.topic("bad")
    incremental(b, (TOPIC, good, [("retention.ms", SET, "9000")]), (TOPIC, bad, [("retention.ms", SET, "x")]))
    await_value(b, TOPIC, good, "retention.ms", "9000")
    describe(b, (TOPIC, good), (TOPIC, bad), keys=["retention.ms"])


@scenario
def unknown_resource_types(b: Subject) -> None:
    for resource_type in (0, 1, 3, 16, 32, 99):
        incremental(b, (resource_type, "x", [("retention.ms", SET, "1")]))
        replace_all(b, (resource_type, "x", {"retention.ms": "1"}))


# -- brokers -----------------------------------------------------------------------------------------------------------


@scenario
def broker_default(b: Subject) -> None:
    key = "log.cleaner.backoff.ms"
    with restored(b, "", key):
        incremental(b, (BROKER, "", [(key, SET, "14000")]))
        await_value(b, BROKER, "0", key, "14000")
        describe(b, (BROKER, ""))
        describe(b, (BROKER, "0"), keys=[key])
    await_value(b, BROKER, "0", key, "15000")


@scenario
def broker_over_default(b: Subject) -> None:
    key = "log.cleaner.backoff.ms"
    with restored(b, "", key), restored(b, "0", key):
        incremental(b, (BROKER, "", [(key, SET, "14000")]))
        incremental(b, (BROKER, "0", [(key, SET, "13000")]))
        await_value(b, BROKER, "0", key, "13000")
        await_value(b, BROKER, "", key, "14000")
        describe(b, (BROKER, "0"), (BROKER, ""), keys=[key])
    await_value(b, BROKER, "0", key, "15000")


@scenario
def topic_follows_broker_default(b: Subject) -> None:
    topic = b.topic()
    key = "log.index.interval.bytes"
    with restored(b, "", key):
        incremental(b, (BROKER, "", [(key, SET, "5000")]))
        await_value(b, TOPIC, topic, "index.interval.bytes", "5000")
        describe(b, (TOPIC, topic), keys=["index.interval.bytes"])
    await_value(b, TOPIC, topic, "index.interval.bytes", "4096")


@scenario
def topic_override_over_broker_default(b: Subject) -> None:
    topic = b.topic(configs={"index.interval.bytes": "6000"})
    key = "log.index.interval.bytes"
    with restored(b, "", key):
        incremental(b, (BROKER, "", [(key, SET, "5000")]))
        await_value(b, BROKER, "0", key, "5000")
        describe(b, (TOPIC, topic), keys=["index.interval.bytes"])
    await_value(b, BROKER, "0", key, "4096")


@scenario
def retention_synonyms(b: Subject) -> None:
    topic = b.topic()
    with restored(b, "", "log.retention.ms"):
        incremental(b, (BROKER, "", [("log.retention.ms", SET, "3600000")]))
        await_value(b, TOPIC, topic, "retention.ms", "3600000")
        describe(b, (TOPIC, topic), keys=["retention.ms"])
        describe(b, (BROKER, "0"), keys=["log.retention.ms", "log.retention.hours", "log.retention.minutes"])
    await_value(b, TOPIC, topic, "retention.ms", "-1")


@scenario
def read_only_broker_keys(b: Subject) -> None:
    for key, value in (("broker.id", "5"), ("num.partitions", "3"), ("log.dirs", "/x"), ("zookeeper.connect", "x:1")):
        incremental(b, (BROKER, "0", [(key, SET, value)]))
        incremental(b, (BROKER, "", [(key, SET, value)]))


@scenario
def read_only_and_dynamic_keys_together(b: Subject) -> None:
    changes: list[Change] = [("log.cleaner.backoff.ms", SET, "14000"), ("num.partitions", SET, "3")]
    incremental(b, (BROKER, "0", changes))
    describe(b, (BROKER, "0"), keys=["log.cleaner.backoff.ms", "num.partitions"])


@scenario
def per_broker_keys_for_all(b: Subject) -> None:
    incremental(b, (BROKER, "", [("listeners", SET, "PLAINTEXT://127.0.0.1:1")]))
    incremental(b, (BROKER, "", [("advertised.listeners", SET, "PLAINTEXT://127.0.0.1:1")]))


@scenario
def bad_broker_values(b: Subject) -> None:
    for key, value in (
        ("message.max.bytes", "x"),
        ("message.max.bytes", "-1"),
        ("log.retention.ms", "0"),
        ("log.cleanup.policy", "shred"),
        ("compression.type", "none"),
        ("max.connections", "-1"),
        ("log.cleaner.threads", "100"),
        ("num.io.threads", "0"),
        ("num.io.threads", "100"),
        ("num.network.threads", "1"),
        ("num.replica.fetchers", "9"),
        ("background.threads", "1"),
        ("num.recovery.threads.per.data.dir", "4"),
        ("min.insync.replicas", "0"),
        ("unclean.leader.election.enable", "maybe"),
        ("log.segment.bytes", "1"),
        ("max.connections.per.ip.overrides", "x"),
    ):
        incremental(b, (BROKER, "0", [(key, SET, value)]), validate_only=True)


@scenario
def good_broker_values(b: Subject) -> None:
    for key, value in (
        ("message.max.bytes", "2000000"),
        ("num.io.threads", "9"),
        ("num.network.threads", "4"),
        ("max.connections.per.ip", "1000"),
        ("max.connections.per.ip.overrides", "127.0.0.1:1000"),
        ("log.roll.ms", "3600000"),
        ("num.recovery.threads.per.data.dir", "2"),
        ("producer.id.expiration.ms", "5000"),
        ("log.message.timestamp.type", "LogAppendTime"),
    ):
        incremental(b, (BROKER, "", [(key, SET, value)]), validate_only=True)


@scenario
def unknown_broker_keys(b: Subject) -> None:
    with restored(b, "0", "my.own.key"):
        incremental(b, (BROKER, "0", [("my.own.key", SET, "1"), ("log.cleaner.backoff.ms", SET, "14000")]))
        await_value(b, BROKER, "0", "log.cleaner.backoff.ms", "14000")
        describe(b, (BROKER, "0"), keys=["my.own.key"])
        incremental(b, (BROKER, "0", [("log.cleaner.backoff.ms", DELETE, None)]))
    await_value(b, BROKER, "0", "log.cleaner.backoff.ms", "15000")


@scenario
def append_to_broker_lists(b: Subject) -> None:
    with restored(b, "", "log.cleanup.policy"):
        incremental(b, (BROKER, "", [("log.cleanup.policy", APPEND, "compact")]))
        await_value(b, BROKER, "0", "log.cleanup.policy", "delete,compact")
        describe(b, (BROKER, "0"), keys=["log.cleanup.policy"])
    await_value(b, BROKER, "0", "log.cleanup.policy", "delete")
    incremental(b, (BROKER, "0", [("num.io.threads", APPEND, "1")]))
    incremental(b, (BROKER, "0", [("no.such.key", APPEND, "1")]))


@scenario
def brokers_that_are_not_asked(b: Subject) -> None:
    for name in ("1", "x", "-1"):
        incremental(b, (BROKER, name, [("log.cleaner.backoff.ms", SET, "1")]))
        replace_all(b, (BROKER, name, {"log.cleaner.backoff.ms": "1"}))


@scenario
def replace_broker_overrides(b: Subject) -> None:
    with restored(b, "0", "log.cleaner.backoff.ms", "log.cleaner.delete.retention.ms"):
        incremental(b, (BROKER, "0", [("log.cleaner.backoff.ms", SET, "14000")]))
        await_value(b, BROKER, "0", "log.cleaner.backoff.ms", "14000")
        replace_all(b, (BROKER, "0", {"log.cleaner.delete.retention.ms": "5"}))
        await_value(b, BROKER, "0", "log.cleaner.delete.retention.ms", "5")
        describe(b, (BROKER, "0"), keys=["log.cleaner.backoff.ms", "log.cleaner.delete.retention.ms"])
    await_value(b, BROKER, "0", "log.cleaner.delete.retention.ms", "86400000")


@scenario
def replace_read_only_broker_key(b: Subject) -> None:
    replace_all(b, (BROKER, "0", {"num.partitions": "5"}))
    replace_all(b, (BROKER, "", {"num.partitions": "5"}))


@scenario
def security_keys_without_listener(b: Subject) -> None:
    incremental(b, (BROKER, "0", [("ssl.keystore.type", SET, "PEM")]))


# -- loggers -----------------------------------------------------------------------------------------------------------


@scenario
def logger_level(b: Subject) -> None:
    name = "kafka.server.ReplicaManager"
    try:
        for level in ("DEBUG", "TRACE", "INFO", "ERROR", "FATAL", "WARN"):
            incremental(b, (BROKER_LOGGER, "0", [(name, SET, level)]))
            describe(b, (BROKER_LOGGER, "0"), keys=[name])
    finally:
        b.quietly(_incremental(((BROKER_LOGGER, "0", [(name, DELETE, None)]),)), 1)


@scenario
def logger_level_back_to_root(b: Subject) -> None:
    name = "kafka.server.ReplicaManager"
    incremental(b, (BROKER_LOGGER, "0", [(name, SET, "ERROR")]))
    incremental(b, (BROKER_LOGGER, "0", [(name, DELETE, None)]))
    describe(b, (BROKER_LOGGER, "0"), keys=[name])


@scenario
def logger_validate_only(b: Subject) -> None:
    name = "kafka.server.ReplicaManager"
    incremental(b, (BROKER_LOGGER, "0", [(name, SET, "ERROR")]), validate_only=True)
    describe(b, (BROKER_LOGGER, "0"), keys=[name])


@scenario
def logger_refusals(b: Subject) -> None:
    for changes in (
        [("no.such.logger", SET, "INFO")],
        [("no.such.logger", DELETE, None)],
        [("kafka.server.ReplicaManager", SET, "LOUD")],
        [("kafka.server.ReplicaManager", SET, "info")],
        [("kafka.server.ReplicaManager", SET, "OFF")],
        [("kafka.server.ReplicaManager", APPEND, "INFO")],
        [("kafka.server.ReplicaManager", SUBTRACT, "INFO")],
        [("kafka.server.ReplicaManager", 9, "INFO")],
        [("root", DELETE, None)],
    ):
        incremental(b, (BROKER_LOGGER, "0", changes))


@scenario
def logger_of_another_broker(b: Subject) -> None:
    for name in ("1", "", "x"):
        incremental(b, (BROKER_LOGGER, name, [("root", SET, "INFO")]))


@scenario
def logger_by_replacing(b: Subject) -> None:
    replace_all(b, (BROKER_LOGGER, "0", {"kafka.server.ReplicaManager": "INFO"}))
