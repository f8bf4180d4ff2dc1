"""DescribeConfigs: values, sources, synonyms, types, and resources that cannot be described."""

from __future__ import annotations

from protocol.messages.configs import AlterConfigsRequest, DescribeConfigsRequest
from tests.parity.subject import Subject, scenario

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS = 2, 4, 8, 16


def describe(
    b: Subject, *resources: tuple[int, str], keys: list[str] | None = None, version: int = 4, synonyms: bool = True
) -> None:
    """Request resources of the given (type, name)."""
    asked = [
        DescribeConfigsRequest.DescribeConfigsResource(
            resource_type=resource_type, resource_name=name, configuration_keys=keys
        )
        for resource_type, name in resources
    ]
    b.ask(DescribeConfigsRequest(resources=asked, include_synonyms=synonyms), version)


@scenario
def topic_with_defaults(b: Subject) -> None:
    describe(b, (TOPIC, b.topic()))


@scenario
def topic_with_overrides(b: Subject) -> None:
    configs = {
        "retention.ms": "86400000",
        "cleanup.policy": "compact,delete",
        "min.cleanable.dirty.ratio": "0.25",
        "compression.type": "zstd",
        "segment.ms": "1000",
        "flush.ms": "500",
        "preallocate": "true",
        "leader.replication.throttled.replicas": "0:0",
    }
    describe(b, (TOPIC, b.topic(configs=configs)))


@scenario
def topic_without_synonyms(b: Subject) -> None:
    describe(b, (TOPIC, b.topic(configs={"max.message.bytes": "5000"})), synonyms=False)


@scenario
def topic_in_every_version(b: Subject) -> None:
    topic = b.topic(configs={"max.message.bytes": "5000"})
    for version in range(5):
        describe(b, (TOPIC, topic), keys=["max.message.bytes", "retention.ms"], version=version, synonyms=version > 0)


@scenario
def one_key(b: Subject) -> None:
    describe(b, (TOPIC, b.topic()), keys=["segment.bytes"])


@scenario
def no_key_means_all(b: Subject) -> None:
    describe(b, (TOPIC, b.topic()), keys=[])


@scenario
def unknown_key(b: Subject) -> None:
    describe(b, (TOPIC, b.topic()), keys=["no.such.key", "retention.bytes"])


@scenario
def missing_topic(b: Subject) -> None:
    describe(b, (TOPIC, b.name("missing")))


@scenario
def bad_topic_names(b: Subject) -> None:
    for name in ("", ".", "..", "a/b", "x" * 250, "a b"):
        describe(b, (TOPIC, name))


@scenario
def several_resources(b: Subject) -> None:
    describe(b, (TOPIC, b.topic("a")), (TOPIC, b.name("missing")), (BROKER, "0"), keys=["min.insync.replicas"])


@scenario
def same_resource_twice(b: Subject) -> None:
    topic = b.topic()
    describe(b, (TOPIC, topic), (TOPIC, topic), keys=["retention.ms"])


@scenario
def broker_all_keys(b: Subject) -> None:
    describe(b, (BROKER, "0"))


@scenario
def broker_types_in_version_3(b: Subject) -> None:
    keys = ["log.dirs", "num.partitions", "log.retention.ms", "ssl.keystore.password", "log.cleanup.policy"]
    describe(b, (BROKER, "0"), keys=keys, version=3)


@scenario
def broker_in_version_0(b: Subject) -> None:
    keys = ["broker.id", "num.partitions", "log.retention.hours", "listeners", "background.threads"]
    describe(b, (BROKER, "0"), keys=keys, version=0, synonyms=False)


@scenario
def broker_synonyms(b: Subject) -> None:
    keys = ["log.roll.hours", "log.roll.ms", "log.retention.hours", "log.retention.minutes", "log.flush.interval.ms"]
    describe(b, (BROKER, "0"), keys=keys)


@scenario
def cluster_default(b: Subject) -> None:
    describe(b, (BROKER, ""))


@scenario
def other_brokers(b: Subject) -> None:
    for name in ("1", "x", "00", "+0", "-1"):
        describe(b, (BROKER, name), keys=["broker.id"])


@scenario
def loggers(b: Subject) -> None:
    describe(b, (BROKER_LOGGER, "0"), keys=["kafka.server.KafkaServer", "root"])


@scenario
def loggers_of_nobody(b: Subject) -> None:
    for name in ("", "1", "x"):
        describe(b, (BROKER_LOGGER, name), keys=["root"])


@scenario
def resource_types_that_cannot_be_described(b: Subject) -> None:
    for resource_type in (0, 1, 3, 5, 16, 32, 127):
        describe(b, (resource_type, "x"))


@scenario
def nothing(b: Subject) -> None:
    describe(b)


@scenario
def documentation_is_text(b: Subject) -> None:
    asked = DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=TOPIC, resource_name=b.topic(), configuration_keys=["retention.ms"]
    )
    response = b.quietly(
        DescribeConfigsRequest(resources=[asked], include_synonyms=False, include_documentation=True), 4
    )
    # The sentences are our own, so only their presence is compared.
    b.note("documentation", len(response.results[0].configs[0].documentation or "") > 10)


@scenario
def after_alter(b: Subject) -> None:
    topic = b.topic(configs={"retention.ms": "1000"})
    altered = AlterConfigsRequest.AlterConfigsResource(
        resource_type=TOPIC,
        resource_name=topic,
        configs=[AlterConfigsRequest.AlterableConfig(name="segment.bytes", value="100000")],
    )
    b.ask(AlterConfigsRequest(resources=[altered], validate_only=False), 2)
    describe(b, (TOPIC, topic), keys=["retention.ms", "segment.bytes"])
