"""Configurations of topics and brokers, read and changed at a broker that they do not belong to."""

from __future__ import annotations

from tests.parity.cluster.subject import CONTROLLER, OTHER, STOPPED, ClusterSubject, cluster_scenario
from tests.parity.scenarios.configs_alter import DELETE, SET, await_value, incremental, replace_all, restored
from tests.parity.scenarios.configs_describe import BROKER, BROKER_LOGGER, TOPIC, describe

NOBODY = "77"
KEY = "log.cleaner.backoff.ms"


@cluster_scenario
def another_brokers_configuration(b: ClusterSubject) -> None:
    for name in (str(OTHER), NOBODY, "-1", "x", "0x1"):
        describe(b, (BROKER, name), keys=["log.segment.bytes"])
    with b.at(OTHER):
        describe(b, (BROKER, str(OTHER)), (BROKER, ""), keys=["log.segment.bytes", "broker.rack"])
        describe(b, (BROKER, str(CONTROLLER)), keys=["log.segment.bytes"])


@cluster_scenario
def another_brokers_loggers(b: ClusterSubject) -> None:
    with b.at(OTHER):
        describe(b, (BROKER_LOGGER, str(CONTROLLER)))
        describe(b, (BROKER_LOGGER, ""))
        describe(b, (BROKER_LOGGER, "x"))


@cluster_scenario
def another_broker_is_not_changed_from_here(b: ClusterSubject) -> None:
    for name in (str(OTHER), NOBODY, "x"):
        incremental(b, (BROKER, name, [(KEY, SET, "20000")]))
        replace_all(b, (BROKER, name, {KEY: "20000"}))
        incremental(b, (BROKER, name, [(KEY, SET, "20000")]), validate_only=True)
    with b.at(OTHER):
        describe(b, (BROKER, str(OTHER)), keys=[KEY])


@cluster_scenario
def every_broker_heeds_the_default(b: ClusterSubject) -> None:
    with restored(b, "", KEY):
        with b.at(OTHER):
            incremental(b, (BROKER, "", [(KEY, SET, "20000")]))
        for broker_id in b.live:
            with b.at(broker_id):
                await_value(b, BROKER, str(broker_id), KEY, "20000")
                describe(b, (BROKER, str(broker_id)), (BROKER, ""), keys=[KEY])
    for broker_id in b.live:
        with b.at(broker_id):
            await_value(b, BROKER, str(broker_id), KEY, "15000")


@cluster_scenario
def a_brokers_own_value_goes_before_the_default(b: ClusterSubject) -> None:
    with restored(b, "", KEY), b.at(STOPPED), restored(b, str(STOPPED), KEY):
        incremental(b, (BROKER, "", [(KEY, SET, "20000")]))
        await_value(b, BROKER, "", KEY, "20000")
        incremental(b, (BROKER, str(STOPPED), [(KEY, SET, "30000")]))
        await_value(b, BROKER, str(STOPPED), KEY, "30000")
        describe(b, (BROKER, str(STOPPED)), keys=[KEY])
        with b.at(OTHER):
            await_value(b, BROKER, str(OTHER), KEY, "20000")


@cluster_scenario
def a_topic_is_configured_at_any_broker(b: ClusterSubject) -> None:
    topic = b.replicated("t", (0, 1))
    with b.at(STOPPED):
        incremental(b, (TOPIC, topic, [("retention.ms", SET, "1234567")]))
    for broker_id in b.live:
        with b.at(broker_id):
            await_value(b, TOPIC, topic, "retention.ms", "1234567")
            describe(b, (TOPIC, topic), keys=["retention.ms"])
    with b.at(OTHER):
        incremental(b, (TOPIC, topic, [("retention.ms", DELETE, None)]))
        incremental(b, (TOPIC, b.name("missing"), [("retention.ms", SET, "1")]))
        incremental(b, (TOPIC, topic, [("retention.ms", SET, "x"), ("min.insync.replicas", SET, "0")]))


@cluster_scenario
def throttles_of_replicas(b: ClusterSubject) -> None:
    topic = b.replicated("t", (0, 1))
    keys = ["leader.replication.throttled.replicas", "follower.replication.throttled.replicas"]
    incremental(b, (TOPIC, topic, [(keys[0], SET, "0:0,0:1"), (keys[1], SET, "*")]))
    await_value(b, TOPIC, topic, keys[1], "*")
    describe(b, (TOPIC, topic), keys=keys)
    rates = ["leader.replication.throttled.rate", "follower.replication.throttled.rate"]
    with b.at(OTHER), restored(b, str(OTHER), *rates):
        incremental(b, (BROKER, str(OTHER), [(rates[0], SET, "1000000"), (rates[1], SET, "-5")]))
        incremental(b, (BROKER, str(OTHER), [(rates[0], SET, "1000000"), (rates[1], SET, "2000000")]))
        await_value(b, BROKER, str(OTHER), rates[1], "2000000")
        describe(b, (BROKER, str(OTHER)), keys=rates)
