"""One broker has stopped: what the other two report about its replicas, and what they still do."""

from __future__ import annotations

from collections.abc import Generator

from protocol.messages.coordinators import FindCoordinatorRequest
from protocol.messages.metadata import DescribeClusterRequest, MetadataRequest
from protocol.messages.offsets import OffsetForLeaderEpochRequest
from tests.parity.cluster.scenarios.brokers_configs import NOBODY
from tests.parity.cluster.scenarios.brokers_groups import commit, committed
from tests.parity.cluster.scenarios.brokers_reading import as_follower, delete_records, end_of_epoch, list_offsets
from tests.parity.cluster.scenarios.brokers_reassignments import list_moves, reassign
from tests.parity.cluster.scenarios.brokers_topics import create, grow
from tests.parity.cluster.subject import (
    CONTROLLER,
    OTHER,
    STOPPED,
    ClusterSubject,
    stopped_scenario,
)
from tests.parity.scenarios.configs_describe import BROKER, describe
from tests.parity.scenarios.elections import PREFERRED, UNCLEAN, elect
from tests.parity.scenarios.fetch import fetch
from tests.parity.subject import batch, produce_request


def orphan(b: ClusterSubject) -> str:
    """A topic whose only replica is about to stop."""
    return b.replicated("t", (STOPPED,))


def await_orphan(b: ClusterSubject, topic: str) -> None:
    """Wait until both brokers know that it is leaderless."""
    for broker_id in b.live:
        with b.at(broker_id):
            b.until(lambda: b.metadata(topic).topics[0].partitions[0].leader_id == -1)


@stopped_scenario
def metadata_of_what_it_led_and_followed(b: ClusterSubject) -> Generator[None]:
    topic = b.replicated("t", (0, 1, 2), (2, 1, 0), (1, 0, 2))
    yield
    b.await_partitions(topic, dict.fromkeys(range(3), (0, 1)))
    for broker_id in b.live:
        with b.at(broker_id):
            b.describe(topic)


@stopped_scenario
def metadata_of_what_nobody_leads(b: ClusterSubject) -> Generator[None]:
    topic = orphan(b)
    yield
    await_orphan(b, topic)
    for version in range(13):
        b.ask(MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=topic)]), version)


@stopped_scenario
def metadata_in_every_version(b: ClusterSubject) -> Generator[None]:
    topic = b.replicated("t", (2, 1, 0))
    yield
    b.await_partitions(topic, {0: (0, 1)})
    with b.at(OTHER):
        for version in range(13):
            b.ask(MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=topic)]), version)


@stopped_scenario
def the_cluster(b: ClusterSubject) -> Generator[None]:
    yield
    b.everywhere(DescribeClusterRequest(include_cluster_authorized_operations=False), 1)
    b.everywhere(MetadataRequest(topics=[]), 12)


@stopped_scenario
def produce_below_min_insync_replicas(b: ClusterSubject) -> Generator[None]:
    topic = b.replicated("t", (0, 2), configs={"min.insync.replicas": "2"})
    yield
    b.await_partitions(topic, {0: (0,)})
    for acks in (-1, 1):
        for version in (3, 9):
            b.ask(produce_request(topic, batch(b"a"), acks=acks), version)
    b.ask(fetch(b, topic, version=12), 12)
    list_offsets(b, topic)


@stopped_scenario
def produce_with_enough_in_sync(b: ClusterSubject) -> Generator[None]:
    topic = b.replicated("t", (2, 0, 1), configs={"min.insync.replicas": "2"})
    yield
    b.await_partitions(topic, {0: (0, 1)})
    b.ask(produce_request(topic, batch(b"a")), 9)


@stopped_scenario
def requests_about_what_nobody_leads(b: ClusterSubject) -> Generator[None]:
    topic = orphan(b)
    yield
    await_orphan(b, topic)
    for broker_id in b.live:
        with b.at(broker_id):
            b.ask(produce_request(topic, batch(b"a")), 9)
            for version in (10, 12):
                b.ask(fetch(b, topic, version=version), version)
            list_offsets(b, topic)
            end_of_epoch(b, topic, 0)
            delete_records(b, topic, 0)


@stopped_scenario
def readers_in_the_epoch_before(b: ClusterSubject) -> Generator[None]:
    topic = b.replicated("t", (2, 0))
    with b.at(STOPPED):
        b.produce(topic, b"a", b"b")
    yield
    b.await_leader(topic, CONTROLLER)
    b.produce(topic, b"c")
    for epoch in (0, 1, 2, 9):
        b.ask(fetch(b, topic, version=12, current_leader_epoch=epoch), 12)
        list_offsets(b, topic, leader_epoch=epoch)
        end_of_epoch(b, topic, epoch)
        end_of_epoch(b, topic, 0, current=epoch)
    for offset, epoch in ((2, 0), (3, 0), (3, 1), (9, 1)):
        b.ask(fetch(b, topic, offset, version=12, last_fetched_epoch=epoch), 12)
    b.ask(fetch(b, topic, version=12), 12)


@stopped_scenario
def the_stopped_broker_is_not_preferred(b: ClusterSubject) -> Generator[None]:
    topic = b.replicated("t", (0, 2))
    b.produce(topic, b"a")
    yield
    b.await_partitions(topic, {0: (0,)})
    b.ask(fetch(b, topic, version=12, rack_id="b"), 12)


@stopped_scenario
def fetches_in_the_name_of_the_stopped_broker(b: ClusterSubject) -> Generator[None]:
    topic = b.replicated("t", (0, 2))
    b.produce(topic, b"a")
    yield
    b.await_partitions(topic, {0: (0,)})
    as_follower(b, topic, STOPPED)
    as_follower(b, topic, OTHER)


@stopped_scenario
def topics_that_need_it(b: ClusterSubject) -> Generator[None]:
    yield
    create(b, "t", partitions=1, replication_factor=3)
    create(b, "u", partitions=1, replication_factor=3, validate_only=True)
    create(b, "v")


@stopped_scenario
def a_topic_with_a_replica_on_it(b: ClusterSubject) -> Generator[None]:
    yield
    create(b, "t", assignment={0: (2, 0), 1: (1, 2)})
    b.await_partitions(b.name("t"), {0: (0,), 1: (1,)})
    b.describe(b.name("t"))


@stopped_scenario
def growth_onto_it(b: ClusterSubject) -> Generator[None]:
    topic = b.replicated("t", (0, 1))
    yield
    grow(b, topic, 2, (0, 2))
    grow(b, topic, 3, (0, 1), (2, 1))
    b.describe(topic)


@stopped_scenario
def moves_onto_it(b: ClusterSubject) -> Generator[None]:
    topic = b.replicated("t", (0, 1))
    yield
    reassign(b, topic, {0: (0, 2)})
    reassign(b, topic, {0: (2,)})
    list_moves(b, {topic: [0]})
    b.describe(topic)


@stopped_scenario
def moves_away_from_it(b: ClusterSubject) -> Generator[None]:
    topic = b.replicated("t", (0, 2))
    b.produce(topic, b"a")
    yield
    b.await_partitions(topic, {0: (0,)})
    reassign(b, topic, {0: (0, 1)})
    b.await_partitions(topic, {0: (0, 1)})
    b.until(lambda: b.metadata(topic).topics[0].partitions[0].replica_nodes == [0, 1])
    b.describe(topic)


@stopped_scenario
def elections_of_it(b: ClusterSubject) -> Generator[None]:
    topic, alone = b.replicated("t", (2, 0, 1)), b.replicated("u", (2,))
    yield
    b.await_leader(topic, CONTROLLER)
    await_orphan(b, alone)
    for version in (0, 1, 2):
        elect(b, version, PREFERRED, {topic: [0], alone: [0]})
    elect(b, 2, UNCLEAN, {topic: [0], alone: [0]})


@stopped_scenario
def an_unclean_election(b: ClusterSubject) -> Generator[None]:
    """Its partitions' leader stops last, so it is then the only one in sync."""
    topic = b.replicated("t", (2, 0))
    yield
    b.await_leader(topic, CONTROLLER)
    elect(b, 2, UNCLEAN, {topic: [0]})
    b.describe(topic)


@stopped_scenario
def its_configuration(b: ClusterSubject) -> Generator[None]:
    yield
    for broker_id in b.live:
        with b.at(broker_id):
            describe(b, (BROKER, str(STOPPED)), (BROKER, NOBODY), keys=["broker.rack"])


@stopped_scenario
def its_groups(b: ClusterSubject) -> Generator[None]:
    """They get another coordinator, which has their offsets."""
    b.offsets_topic()
    topic = b.replicated("t", (0, 1))
    groups = [b.name(f"g{number}") for number in range(6)]
    where = {}
    for group in groups:
        found = b.quietly(FindCoordinatorRequest(key_type=0, coordinator_keys=[group]), 4).coordinators[0]
        where[group] = found.node_id
        with b.at(found.node_id):

            def is_committed(group: str = group) -> bool:
                return bool(b.quietly(commit(group, topic, 5), 8).topics[0].partitions[0].error_code == 0)

            b.until(is_committed)
    assert STOPPED in where.values(), "no group is coordinated by the broker that stops"
    yield
    for group in groups:

        def is_found(group: str = group) -> bool:
            found = b.quietly(FindCoordinatorRequest(key_type=0, coordinator_keys=[group]), 4).coordinators[0]
            where[group] = found.node_id
            return found.error_code == 0 and found.node_id in b.live

        b.until(is_found)
        b.note("coordinator", where[group])
        with b.at(where[group]):
            b.until(lambda group=group: b.quietly(committed(group, topic), 8).groups[0].error_code == 0)  # type: ignore[misc]
            b.ask(committed(group, topic), 8)


@stopped_scenario
def ends_of_epochs_of_several_partitions(b: ClusterSubject) -> Generator[None]:
    topic = b.replicated("t", (2, 0), (0, 2), (2, 1))
    yield
    b.await_leader(topic, CONTROLLER, 0)
    b.await_leader(topic, OTHER, 2)
    asked = [
        OffsetForLeaderEpochRequest.OffsetForLeaderPartition(partition=number, leader_epoch=0) for number in range(4)
    ]
    named = OffsetForLeaderEpochRequest.OffsetForLeaderTopic(topic=topic, partitions=asked)
    b.everywhere(OffsetForLeaderEpochRequest(replica_id=-1, topics=[named]), 4)
