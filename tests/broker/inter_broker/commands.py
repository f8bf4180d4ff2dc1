"""Commands of a controller as Hypothesis makes them, and a few by hand."""

from __future__ import annotations

from hypothesis import strategies as st

from broker.inter_broker.command_codec import MOST_PARTITIONS
from cluster.controller.commands import (
    NO_EPOCH,
    Answer,
    LeaderAndIsr,
    StoppedReplica,
    StopReplica,
    TopicStates,
    UpdateMetadata,
)
from cluster.eligible_leaders import EligibleLeaders
from cluster.metadata_image import BrokerImage, PartitionImage
from cluster.znodes import Endpoint
from protocol.errors import ErrorCode
from protocol.topic_partition import TopicPartition
from protocol.uuids import Uuid
from tests.kit.environment import uuid_of

INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
BROKERS = st.lists(st.integers(0, 2**31 - 1), max_size=4).map(tuple)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
TOPICS = st.text("abcXYZ019._-", min_size=1, max_size=20).filter(lambda name: name not in {".", ".."})
PARTITIONS = st.integers(0, MOST_PARTITIONS - 1)
IDS = st.integers(1, 2**128 - 1).map(uuid_of)


def images(*, recovery: bool, offline: bool) -> st.SearchStrategy[PartitionImage]:
    """Partitions with the fields that the message can carry."""
    return st.builds(
        PartitionImage,
        partition=PARTITIONS,
        leader=st.integers(-1, 2**31 - 1),
        leader_epoch=INT32,
        replicas=BROKERS,
        isr=BROKERS,
        partition_epoch=INT32,
        controller_epoch=INT32,
        leader_recovery_state=st.integers(0, 1) if recovery else st.just(0),
        offline_replicas=BROKERS if offline else st.just(()),
        eligible=st.none() | st.builds(EligibleLeaders, BROKERS) if recovery else st.none(),
    )


@st.composite
def topic_states(
    draw: st.DrawFn, partitions: st.SearchStrategy[PartitionImage]
) -> list[tuple[str, Uuid, list[PartitionImage]]]:
    """Topics, each with another name, another id and at least one partition."""
    names = draw(st.lists(TOPICS, unique=True, max_size=4))
    ids = draw(st.lists(IDS, unique=True, min_size=len(names), max_size=len(names)))
    states = st.lists(partitions, min_size=1, max_size=4, unique_by=lambda image: image.partition)
    return [(name, topic_id, draw(states)) for name, topic_id in zip(names, ids, strict=True)]


@st.composite
def leader_and_isrs(draw: st.DrawFn) -> LeaderAndIsr:
    """New replicas of a topic in front of, behind, or without others of it."""
    topics: list[TopicStates] = []
    for name, topic_id, states in draw(topic_states(images(recovery=True, offline=False))):
        split = draw(st.integers(0, len(states)))
        first_are_new = draw(st.booleans())
        for part, is_new in ((states[:split], first_are_new), (states[split:], not first_are_new)):
            if part:
                topics.append(TopicStates(name, topic_id, tuple(part), is_new))
    return LeaderAndIsr(draw(INT32), draw(INT32), draw(INT64), topics=tuple(topics), is_full=draw(st.booleans()))


STOPPED = st.builds(
    StoppedReplica,
    topic_partition=st.builds(TopicPartition, NAMES, INT32),
    leader_epoch=INT32,
    delete_partition=st.booleans(),
)
STOP_REPLICAS = st.builds(
    StopReplica,
    controller_id=INT32,
    controller_epoch=INT32,
    broker_epoch=INT64,
    partitions=st.lists(STOPPED, unique_by=lambda each: each.topic_partition, max_size=8).map(tuple),
)


@st.composite
def live_brokers(draw: st.DrawFn) -> dict[int, BrokerImage]:
    """Their epochs are not carried."""
    brokers: dict[int, BrokerImage] = {}
    for broker_id in draw(st.lists(st.integers(0, 2**31 - 1), unique=True, max_size=3)):
        endpoints = {
            name: Endpoint(name, draw(NAMES), draw(INT32), draw(st.sampled_from(("PLAINTEXT", "SSL", "SASL_SSL"))))
            for name in draw(st.lists(NAMES, unique=True, max_size=2))
        }
        rack = draw(st.none() | st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=9))
        brokers[broker_id] = BrokerImage(broker_id, NO_EPOCH, endpoints, rack)
    return brokers


@st.composite
def update_metadatas(draw: st.DrawFn) -> UpdateMetadata:
    """Some topics are deleted; their partitions have lost their leaders."""
    topics: list[TopicStates] = []
    deleted: list[TopicStates] = []
    for name, topic_id, states in draw(topic_states(images(recovery=False, offline=True))):
        if draw(st.booleans()):
            topics.append(TopicStates(name, topic_id, tuple(states)))
        else:
            deleted.append(TopicStates(name, topic_id, tuple(each.replace(leader=-2) for each in states)))
    is_full = draw(st.booleans())
    return UpdateMetadata(
        draw(INT32),
        draw(INT32),
        draw(INT64),
        live_brokers=draw(live_brokers()),
        topics=tuple(topics),
        deleted_topics=tuple(deleted),
        is_full=is_full,
    )


def answer_of(
    command: LeaderAndIsr | StopReplica, error_codes: st.SearchStrategy[ErrorCode], draw: st.DrawFn
) -> Answer:
    """Any answer to a command."""
    if isinstance(command, StopReplica):
        named = [each.topic_partition for each in command.partitions]
    else:
        named = [TopicPartition(topic.topic, each.partition) for topic in command.topics for each in topic.partitions]
    return {each: draw(error_codes) for each in named}


def image(partition: int, leader: int = 1, leader_epoch: int = 5, replicas: tuple[int, ...] = (1, 2)) -> PartitionImage:
    """A partition that everybody has."""
    return PartitionImage(partition, leader, leader_epoch, replicas, replicas, 3, 7)
