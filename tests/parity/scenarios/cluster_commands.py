"""Commands of a deposed controller and of the current one: LeaderAndIsr, StopReplica, UpdateMetadata.

The topics are not in the tree: the scenarios act as the controller, with its epoch.
"""

from __future__ import annotations

from hashlib import blake2b

from protocol.messages.cluster_commands import LeaderAndIsrRequest, StopReplicaRequest, UpdateMetadataRequest
from protocol.uuids import Uuid
from protocol.wire.schema import Request
from tests.kit.wire_requests import fetch, metadata, produce
from tests.parity.subject import Subject, scenario

ME, OTHER = 0, 5
DEPOSED, CURRENT = 0, 1
"""Controller epochs: the brokers have had one each."""
NOT_CHECKED, OLD = -1, 1
"""Broker epochs."""
INCREMENTAL = 1
DURING_DELETE = -2

State = LeaderAndIsrRequest.LeaderAndIsrPartitionState
StopState = StopReplicaRequest.StopReplicaPartitionState
MetadataState = UpdateMetadataRequest.UpdateMetadataPartitionState


def id_of(b: Subject, topic: str = "t") -> Uuid:
    """The topic's id, the same on both brokers."""
    return Uuid(blake2b(f"{b.prefix}-{topic}".encode(), digest_size=16).digest())


def lead(
    b: Subject,
    *partitions: int,
    leader: int = ME,
    leader_epoch: int = 3,
    replicas: tuple[int, ...] = (ME,),
    is_new: bool = False,
    topic_id: Uuid | None = None,
    controller_epoch: int = CURRENT,
    broker_epoch: int = NOT_CHECKED,
    version: int = 7,
) -> None:
    """LeaderAndIsr for some partitions of the scenario's topic."""
    name = f"{b.prefix}-t"
    states = [
        State(
            topic_name=name,
            partition_index=partition,
            controller_epoch=controller_epoch,
            leader=leader,
            leader_epoch=leader_epoch,
            isr=list(replicas),
            partition_epoch=0,
            replicas=list(replicas),
            is_new=is_new,
        )
        for partition in partitions or (0,)
    ]
    grouped = LeaderAndIsrRequest.LeaderAndIsrTopicState(
        topic_name=name, topic_id=topic_id or id_of(b), partition_states=states
    )
    request = LeaderAndIsrRequest(
        controller_id=ME,
        controller_epoch=controller_epoch,
        broker_epoch=broker_epoch,
        type=INCREMENTAL if version >= 5 else 0,
        ungrouped_partition_states=states if version < 2 else [],
        topic_states=[grouped] if version >= 2 else [],
        live_leaders=[],
    )
    b.ask(request, version)


def stop(
    b: Subject,
    *partitions: int,
    leader_epoch: int = DURING_DELETE,
    delete: bool = True,
    controller_epoch: int = CURRENT,
    broker_epoch: int = NOT_CHECKED,
    version: int = 4,
) -> None:
    """StopReplica for some partitions of the scenario's topic."""
    name, numbers = f"{b.prefix}-t", list(partitions or (0,))
    message = StopReplicaRequest
    states = [StopState(partition_index=each, leader_epoch=leader_epoch, delete_partition=delete) for each in numbers]
    single = message.StopReplicaPartitionV0
    request = message(
        controller_id=ME,
        controller_epoch=controller_epoch,
        broker_epoch=broker_epoch,
        delete_partitions=delete and version < 3,
        ungrouped_partitions=[single(topic_name=name, partition_index=each) for each in numbers] if not version else [],
        topics=[message.StopReplicaTopicV1(name=name, partition_indexes=numbers)] if version in {1, 2} else [],
        topic_states=[message.StopReplicaTopicState(topic_name=name, partition_states=states)] if version > 2 else [],
    )
    b.ask(request, version)


def tell(
    b: Subject,
    *partitions: int,
    leader: int = ME,
    controller_epoch: int = CURRENT,
    broker_epoch: int = NOT_CHECKED,
    version: int = 8,
) -> None:
    """UpdateMetadata for some partitions of the scenario's topic, with a single live broker."""
    b.ask(update(b, *partitions, leader=leader, epochs=(controller_epoch, broker_epoch), version=version), version)


def update(b: Subject, *partitions: int, leader: int, epochs: tuple[int, int], version: int) -> Request:
    """The request of `tell`."""
    message, name = UpdateMetadataRequest, f"{b.prefix}-t"
    states = [
        MetadataState(
            topic_name=name, partition_index=each, controller_epoch=epochs[0], leader=leader, leader_epoch=3, isr=[ME],
            zk_version=0, replicas=[ME],
        )
        for each in partitions or (0,)
    ]  # fmt: skip
    grouped = message.UpdateMetadataTopicState(topic_name=name, topic_id=id_of(b), partition_states=states)
    endpoint = message.UpdateMetadataEndpoint(port=b.port, host=b.host, listener="PLAINTEXT", security_protocol=0)
    broker = message.UpdateMetadataBroker(
        id=ME, v0_host=b.host, v0_port=b.port, endpoints=[endpoint] if version else [], rack=None if version else ""
    )
    return message(
        controller_id=ME,
        controller_epoch=epochs[0],
        broker_epoch=epochs[1],
        ungrouped_partition_states=states if version < 5 else [],
        topic_states=[grouped] if version >= 5 else [],
        live_brokers=[broker],
    )


@scenario
def leader_and_isr_of_a_deposed_controller(b: Subject) -> None:
    for version in range(8):
        lead(b, 0, 1, controller_epoch=DEPOSED, version=version)


@scenario
def leader_and_isr_for_an_older_registration(b: Subject) -> None:
    for version in range(2, 8):
        lead(b, 0, 1, broker_epoch=OLD, version=version)


@scenario
def stop_replica_of_a_deposed_controller(b: Subject) -> None:
    for version in range(5):
        stop(b, 0, 1, controller_epoch=DEPOSED, version=version)


@scenario
def stop_replica_for_an_older_registration(b: Subject) -> None:
    for version in range(1, 5):
        stop(b, 0, 1, broker_epoch=OLD, version=version)


@scenario
def update_metadata_of_a_deposed_controller(b: Subject) -> None:
    for version in range(9):
        tell(b, controller_epoch=DEPOSED, version=version)


@scenario
def update_metadata_for_an_older_registration(b: Subject) -> None:
    for version in range(5, 9):
        tell(b, broker_epoch=OLD, version=version)


@scenario
def roles_are_taken_and_old_ones_refused(b: Subject) -> None:
    lead(b, 0, 1, is_new=True)
    lead(b, 0)
    lead(b, 0, leader_epoch=2)
    lead(b, 0, leader_epoch=4)
    lead(b, 0, leader_epoch=5, topic_id=id_of(b, "another"))
    lead(b, 0, 1, 2, leader_epoch=6, leader=OTHER, replicas=(OTHER,))
    stop(b, 0, 1, 2)


@scenario
def replicas_are_stopped_and_old_commands_refused(b: Subject) -> None:
    lead(b, 0, 1, is_new=True)
    stop(b, 0, leader_epoch=2)
    stop(b, 0, leader_epoch=3, delete=False)
    stop(b, 0, leader_epoch=3)
    stop(b, 1, 2, leader_epoch=NOT_CHECKED)
    stop(b, 0, 1)


@scenario
def clients_see_what_the_controller_tells(b: Subject) -> None:
    topic = f"{b.prefix}-t"
    lead(b, is_new=True)
    tell(b)
    b.ask(metadata(topic), 12)
    b.ask(produce(topic, [b"one", b"two"]), 9)
    b.ask(fetch(topic, 0), 12)
    tell(b, leader=DURING_DELETE)
    stop(b)
    b.ask(metadata(topic), 12)
