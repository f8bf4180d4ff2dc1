"""Inter-broker requests and controller commands, sent to the wrong broker or by the wrong one."""

from __future__ import annotations

from protocol.messages.cluster_requests import AllocateProducerIdsRequest, ControlledShutdownRequest
from tests.parity.cluster.subject import OTHER, STOPPED, ClusterSubject, cluster_scenario
from tests.parity.scenarios.cluster_commands import DEPOSED, lead, stop
from tests.parity.scenarios.cluster_requests import OLD, alter

STRANGER = 99


@cluster_scenario
def controlled_shutdown_not_at_the_controller(b: ClusterSubject) -> None:
    with b.at(OTHER):
        for version in (1, 2, 3):
            b.ask(ControlledShutdownRequest(broker_id=STOPPED, broker_epoch=OLD), version)


@cluster_scenario
def controlled_shutdown_of_an_older_registration(b: ClusterSubject) -> None:
    for version in (2, 3):
        b.ask(ControlledShutdownRequest(broker_id=STOPPED, broker_epoch=OLD), version)


@cluster_scenario
def alter_partition_not_at_the_controller(b: ClusterSubject) -> None:
    with b.at(OTHER):
        for version in range(4):
            alter(b, STOPPED, OLD, version)


@cluster_scenario
def alter_partition_of_an_older_registration(b: ClusterSubject) -> None:
    for version in range(4):
        alter(b, OTHER, OLD, version)


@cluster_scenario
def producer_ids_not_at_the_controller(b: ClusterSubject) -> None:
    with b.at(OTHER):
        b.ask(AllocateProducerIdsRequest(broker_id=OTHER, broker_epoch=OLD), 0)


@cluster_scenario
def producer_ids_for_an_older_registration(b: ClusterSubject) -> None:
    for broker_id in (OTHER, STRANGER):
        b.ask(AllocateProducerIdsRequest(broker_id=broker_id, broker_epoch=OLD), 0)


@cluster_scenario
def commands_of_a_controller_that_is_deposed(b: ClusterSubject) -> None:
    for broker_id in (OTHER, STOPPED):
        with b.at(broker_id):
            lead(b, leader=broker_id, replicas=(broker_id,), is_new=True, controller_epoch=DEPOSED)
            stop(b, 0, controller_epoch=DEPOSED)


@cluster_scenario
def commands_for_an_older_registration(b: ClusterSubject) -> None:
    with b.at(OTHER):
        lead(b, leader=OTHER, replicas=(OTHER,), is_new=True, broker_epoch=OLD)
        stop(b, 0, broker_epoch=OLD)
