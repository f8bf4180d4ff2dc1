"""Values that a running broker must refuse: negative, contradictory, or too large a change at once.

Each is requested with AlterConfigs and IncrementalAlterConfigs, most of them with validate_only.
"""

from __future__ import annotations

from collections.abc import Iterable

from protocol.messages.topics import CreateTopicsRequest
from tests.parity.scenarios.configs_alter import SET, await_value, incremental, replace_all, restored
from tests.parity.scenarios.configs_describe import BROKER, TOPIC, describe
from tests.parity.subject import Subject, scenario

ALTER_LOG_DIRS_RATE = "replica.alter.log.dirs.io.max.bytes.per.second"
THREADS = {
    "num.io.threads": 8,
    "num.network.threads": 3,
    "num.replica.fetchers": 1,
    "num.recovery.threads.per.data.dir": 1,
    "background.threads": 10,
    "log.cleaner.threads": 1,
}


def ask_for(b: Subject, resource_type: int, name: str, configs: dict[str, str | None]) -> None:
    """Both APIs, with validate_only."""
    incremental(b, (resource_type, name, [(key, SET, value) for key, value in configs.items()]), validate_only=True)
    replace_all(b, (resource_type, name, configs), validate_only=True)


def ask_for_each(b: Subject, resource_type: int, names: Iterable[str], values: dict[str, tuple[str, ...]]) -> None:
    for key, each in values.items():
        for value in each:
            for name in names:
                ask_for(b, resource_type, name, {key: value})


# -- brokers -----------------------------------------------------------------------------------------------------------


@scenario
def numbers_of_threads(b: Subject) -> None:
    for key, now in THREADS.items():
        values = dict.fromkeys((now * 2 + 1, now * 2, now // 2, now // 2 - 1, 0, -1))
        numbers = tuple(str(value) for value in values if value or key != "log.cleaner.threads")
        ask_for_each(b, BROKER, ("0", ""), {key: numbers})


@scenario
def no_cleaner_threads(b: Subject) -> None:
    ask_for_each(b, BROKER, ("0", ""), {"log.cleaner.threads": ("0",)})


@scenario
def numbers_of_threads_meant(b: Subject) -> None:
    key = "num.io.threads"
    with restored(b, "0", key):
        for value in ("16", "15"):
            incremental(b, (BROKER, "0", [(key, SET, "100")]))
            replace_all(b, (BROKER, "0", {key: "100"}))
            incremental(b, (BROKER, "0", [(key, SET, value)]))
            await_value(b, BROKER, "0", key, value)
        # An overridden value may be anything.
        with restored(b, "", key):
            incremental(b, (BROKER, "", [(key, SET, "100")]))
            await_value(b, BROKER, "", key, "100")
            describe(b, (BROKER, "0"), keys=[key])
        await_value(b, BROKER, "", key, None)
    await_value(b, BROKER, "0", key, "8")


@scenario
def one_bad_among_good_ones(b: Subject) -> None:
    for bad in ({"num.io.threads": "100"}, {"log.cleaner.threads": "9"}, {"log.retention.ms": "0"}):
        ask_for(b, BROKER, "0", {"log.cleaner.backoff.ms": "14000", **bad})
    describe(b, (BROKER, "0"), keys=["log.cleaner.backoff.ms"])


@scenario
def the_cleaner(b: Subject) -> None:
    values = {
        "log.cleaner.threads": ("x", "2147483648"),
        "log.cleaner.dedupe.buffer.size": ("-1", "0", "1048576", "1048577", "x"),
        "log.cleaner.io.buffer.size": ("-1", "0"),
        "log.cleaner.io.buffer.load.factor": ("-1", "x", "5"),
        "log.cleaner.io.max.bytes.per.second": ("-1", "0", "fast"),
        "log.cleaner.backoff.ms": ("-1",),
        "log.cleaner.min.cleanable.ratio": ("-0.1", "1.1"),
        "log.cleaner.delete.retention.ms": ("-1",),
        "log.cleaner.min.compaction.lag.ms": ("-1",),
        "log.cleaner.max.compaction.lag.ms": ("0", "-1"),
    }
    ask_for_each(b, BROKER, ("0", ""), values)
    ask_for(b, BROKER, "0", {"log.cleaner.threads": "2", "log.cleaner.dedupe.buffer.size": "2097152"})
    ask_for(b, BROKER, "0", {"log.cleaner.threads": "2", "log.cleaner.dedupe.buffer.size": "2097154"})


@scenario
def contradicting_lags_of_a_broker(b: Subject) -> None:
    ask_for(b, BROKER, "0", {"log.cleaner.min.compaction.lag.ms": "10", "log.cleaner.max.compaction.lag.ms": "5"})
    ask_for(b, BROKER, "", {"log.cleaner.min.compaction.lag.ms": "10", "log.cleaner.max.compaction.lag.ms": "5"})


@scenario
def a_topic_against_its_broker(b: Subject) -> None:
    """The broker's defaults apply to a topic without an override."""
    topic = b.topic()
    key = "log.cleaner.max.compaction.lag.ms"
    with restored(b, "", key):
        incremental(b, (BROKER, "", [(key, SET, "1000")]))
        await_value(b, TOPIC, topic, "max.compaction.lag.ms", "1000")
        ask_for(b, TOPIC, topic, {"min.compaction.lag.ms": "2000"})
        ask_for(b, TOPIC, topic, {"min.compaction.lag.ms": "1000"})
        create(b, {"min.compaction.lag.ms": "2000"})
    await_value(b, TOPIC, topic, "max.compaction.lag.ms", str(2**63 - 1))


@scenario
def logs(b: Subject) -> None:
    values = {
        "log.retention.ms": ("0", "-2", "x"),
        "log.retention.minutes": ("0", "-5"),
        "log.retention.bytes": ("-2", "x"),
        "log.segment.bytes": ("13", "2147483648"),
        "log.segment.delete.delay.ms": ("-1",),
        "log.roll.ms": ("0", "-1"),
        "log.roll.jitter.ms": ("-1",),
        "log.index.size.max.bytes": ("3",),
        "log.index.interval.bytes": ("-1",),
        "log.flush.interval.messages": ("0",),
        "log.flush.interval.ms": ("-1",),
        "log.message.timestamp.type": ("createtime",),
        "log.message.timestamp.before.max.ms": ("-1",),
        "log.message.timestamp.after.max.ms": ("-1",),
        "log.preallocate": ("yes",),
        "message.max.bytes": ("-1",),
        "compression.gzip.level": ("0", "10"),
        "compression.lz4.level": ("18",),
        "compression.zstd.level": ("23",),
        "max.connection.creation.rate": ("-1",),
        "max.connections.per.ip": ("-1", "0"),
        "producer.id.expiration.ms": ("0",),
    }
    ask_for_each(b, BROKER, ("0",), values)


@scenario
def local_retention_beyond_retention(b: Subject) -> None:
    ask_for(b, BROKER, "0", {"log.retention.ms": "1000", "log.local.retention.ms": "2000"})
    ask_for(b, BROKER, "0", {"log.retention.bytes": "1000", "log.local.retention.bytes": "2000"})
    ask_for(b, BROKER, "", {"log.retention.ms": "1000", "log.local.retention.ms": "-1"})
    ask_for(b, BROKER, "", {"log.retention.bytes": "1000", "log.local.retention.bytes": "-1"})
    ask_for(b, BROKER, "", {"log.retention.hours": "1", "log.local.retention.ms": "3600001"})
    ask_for(b, BROKER, "0", {"log.local.retention.ms": "2000", "log.local.retention.bytes": "1"})
    topic = b.topic()
    ask_for(b, TOPIC, topic, {"retention.ms": "1000", "local.retention.ms": "2000"})
    ask_for(b, TOPIC, topic, {"retention.bytes": "1000", "local.retention.bytes": "2000"})


@scenario
def the_limit_of_moves(b: Subject) -> None:
    keys = (ALTER_LOG_DIRS_RATE, "leader.replication.throttled.rate", "follower.replication.throttled.rate")
    for key in keys:
        ask_for_each(b, BROKER, ("0", ""), {key: ("-1", "x", "", "9223372036854775808", "0", " 7 ")})
    with restored(b, "0", *keys), restored(b, "", *keys):
        describe(b, (BROKER, "0"), (BROKER, ""), keys=[ALTER_LOG_DIRS_RATE])
        incremental(b, (BROKER, "", [(ALTER_LOG_DIRS_RATE, SET, "5000000")]))
        await_value(b, BROKER, "", ALTER_LOG_DIRS_RATE, "5000000")
        describe(b, (BROKER, "0"), (BROKER, ""), keys=[ALTER_LOG_DIRS_RATE])
        incremental(b, (BROKER, "0", [(key, SET, "6000000") for key in keys]))
        await_value(b, BROKER, "0", keys[1], "6000000")
        for key in keys:
            describe(b, (BROKER, "0"), (BROKER, ""), keys=[key])


# -- topics ------------------------------------------------------------------------------------------------------------


@scenario
def topics(b: Subject) -> None:
    topic = b.topic()
    values = {
        "retention.ms": ("-2",),
        "retention.bytes": ("-2",),
        "segment.bytes": ("0", "-1"),
        "segment.ms": ("0", "-1"),
        "segment.jitter.ms": ("-1",),
        "segment.index.bytes": ("3",),
        "index.interval.bytes": ("-1",),
        "delete.retention.ms": ("-1",),
        "file.delete.delay.ms": ("-1",),
        "flush.ms": ("-1",),
        "max.message.bytes": ("-1",),
        "max.compaction.lag.ms": ("0",),
        "min.compaction.lag.ms": ("-1",),
        "min.cleanable.dirty.ratio": ("-0.1", "NaN"),
        "message.timestamp.before.max.ms": ("-1",),
    }
    ask_for_each(b, TOPIC, (topic,), values)
    ask_for(b, TOPIC, topic, {"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "5"})
    ask_for(b, TOPIC, topic, {"segment.ms": "10", "segment.jitter.ms": "20"})
    ask_for(b, TOPIC, topic, {"segment.bytes": "100", "max.message.bytes": "200"})
    ask_for(b, TOPIC, topic, {"retention.bytes": "100", "segment.bytes": "200"})


@scenario
def new_topics(b: Subject) -> None:
    create(b, {"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "5"})
    create(b, {"retention.ms": "-2"})
    create(b, {"segment.bytes": "13"})
    create(b, {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "2"})


def create(b: Subject, configs: dict[str, str]) -> None:
    """Validate the creation of a topic with these; it is not created."""
    topic = CreateTopicsRequest.CreatableTopic(
        name=b.name("new"),
        num_partitions=1,
        replication_factor=1,
        assignments=[],
        configs=[CreateTopicsRequest.CreatableTopicConfig(name=key, value=value) for key, value in configs.items()],
    )
    b.ask(CreateTopicsRequest(topics=[topic], timeout_ms=30_000, validate_only=True), 7)
