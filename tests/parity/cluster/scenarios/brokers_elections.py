"""ElectLeaders over three brokers."""

from __future__ import annotations

from protocol.messages.reassignments import ElectLeadersRequest
from tests.parity.cluster.subject import OTHER, ClusterSubject, cluster_scenario, reassignment
from tests.parity.scenarios.elections import PREFERRED, UNCLEAN, elect


@cluster_scenario
def the_preferred_replica_leads_again(b: ClusterSubject) -> None:
    topic = b.replicated("t", (0, 1))
    b.quietly(reassignment({topic: {0: (1, 0)}}), 0)
    b.until(lambda: b.metadata(topic).topics[0].partitions[0].replica_nodes == [1, 0])
    elect(b, 2, PREFERRED, {topic: [0]})
    b.await_leader(topic, 1)
    b.describe(topic)
    elect(b, 2, PREFERRED, {topic: [0]})


@cluster_scenario
def one_of_several_needs_an_election(b: ClusterSubject) -> None:
    topic = b.replicated("t", (0, 1), (1, 2))
    b.quietly(reassignment({topic: {0: (1, 0)}}), 0)
    b.until(lambda: b.metadata(topic).topics[0].partitions[0].replica_nodes == [1, 0])
    elect(b, 1, PREFERRED, {topic: [0, 1, 2], b.name("missing"): [0]})


@cluster_scenario
def leaders_that_are_there_are_not_replaced(b: ClusterSubject) -> None:
    topic = b.replicated("t", (0, 1), configs={"unclean.leader.election.enable": "true"})
    for version in (1, 2):
        elect(b, version, UNCLEAN, {topic: [0]})


@cluster_scenario
def elections_not_at_the_controller(b: ClusterSubject) -> None:
    topic = b.replicated("t", (0, 1), (1, 0))
    with b.at(OTHER):
        for version in range(3):
            elect(b, version, PREFERRED, {topic: [0, 1]})
        elect(b, 2, UNCLEAN, {topic: [0]})
        elect(b, 2, PREFERRED, {})
        b.ask(ElectLeadersRequest(election_type=PREFERRED, topic_partitions=[], timeout_ms=0), 2)
