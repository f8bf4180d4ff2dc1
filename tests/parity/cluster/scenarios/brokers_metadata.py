"""Metadata, DescribeCluster and DescribeLogDirs of a topic that three brokers share."""

from __future__ import annotations

from protocol.messages.coordinators import FindCoordinatorRequest
from protocol.messages.log_dirs import DescribeLogDirsRequest
from protocol.messages.metadata import DescribeClusterRequest, MetadataRequest
from tests.parity.cluster.subject import CONTROLLER, OTHER, STOPPED, ClusterSubject, cluster_scenario, created

ALL_VERSIONS = range(13)


@cluster_scenario
def a_replicated_topic_everywhere(b: ClusterSubject) -> None:
    topic = b.replicated("t", (0, 1), (1, 2), (2, 0))
    for broker_id in b.live:
        with b.at(broker_id):
            b.describe(topic)


@cluster_scenario
def a_replicated_topic_in_every_version(b: ClusterSubject) -> None:
    topic = b.replicated("t", (2, 0, 1))
    with b.at(OTHER):
        for version in ALL_VERSIONS:
            request = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=topic)])
            b.ask(request, version)


@cluster_scenario
def by_id_at_another_broker(b: ClusterSubject) -> None:
    topic = b.replicated("t", (1, 0))
    wanted = MetadataRequest.MetadataRequestTopic(topic_id=b.topic_id(topic), name=None)
    b.everywhere(MetadataRequest(topics=[wanted]), 12)


@cluster_scenario
def a_missing_topic_everywhere(b: ClusterSubject) -> None:
    for broker_id in b.live:
        with b.at(broker_id):
            b.describe(b.name("missing"))


@cluster_scenario
def no_topics_everywhere(b: ClusterSubject) -> None:
    for version in (1, 8, 12):
        b.everywhere(MetadataRequest(topics=[]), version)


@cluster_scenario
def the_cluster_everywhere(b: ClusterSubject) -> None:
    for version in (0, 1):
        b.everywhere(DescribeClusterRequest(include_cluster_authorized_operations=False), version)


@cluster_scenario
def a_topic_that_is_deleted_is_gone_everywhere(b: ClusterSubject) -> None:
    topic = b.replicated("t", (0, 1, 2))
    b.delete(topic)
    for broker_id in b.live:
        with b.at(broker_id):
            b.until(lambda: b.metadata(topic).topics[0].error_code == 3)
            b.describe(topic)
    b.replicated("t", (2, 1))
    with b.at(OTHER):
        b.describe(topic)


@cluster_scenario
def log_directories_of_leader_follower_and_another(b: ClusterSubject) -> None:
    topic = b.replicated("t", (0, 1))
    b.produce(topic, b"a", b"b")
    asked = DescribeLogDirsRequest.DescribableLogDirTopic(topic=topic, partitions=[0])
    for broker_id in (CONTROLLER, OTHER, STOPPED):
        with b.at(broker_id):
            for version in (1, 4):
                b.ask(DescribeLogDirsRequest(topics=[asked]), version)


@cluster_scenario
def an_internal_topic_everywhere(b: ClusterSubject) -> None:
    b.offsets_topic()
    for broker_id in b.live:
        with b.at(broker_id):
            b.describe("__consumer_offsets")


@cluster_scenario
def coordinators_everywhere(b: ClusterSubject) -> None:
    b.offsets_topic()
    for version in (0, 3, 4):
        for group in "abcd":
            keys = {"key": group} if version < 4 else {"coordinator_keys": [group]}
            b.everywhere(FindCoordinatorRequest(key_type=0, **keys), version)


@cluster_scenario
def a_topic_that_was_only_validated_is_nowhere(b: ClusterSubject) -> None:
    b.ask(created(b.name(), (0, 1, 2), validate_only=True), 7)
    for broker_id in b.live:
        with b.at(broker_id):
            b.describe(b.name())
