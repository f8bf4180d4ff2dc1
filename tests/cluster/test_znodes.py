"""Payloads as written by Apache Kafka 3.9.1 to its ZooKeeper, decoded and encoded byte for byte."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from cluster import znodes
from cluster.eligible_leaders import EligibleLeaders
from cluster.znodes import (
    BrokerRegistration,
    Endpoint,
    PartitionState,
    ProducerIdBlock,
    TopicAssignment,
    ZnodeFormatError,
)
from protocol.uuids import ZERO_UUID, Uuid

TOPIC = (
    b'{"partitions":{"0":[0],"1":[0]},"topic_id":"HGcBO5y3Sg6SVUHpOkw_Wg","adding_replicas":{},"removing_replicas":{},'
    b'"version":3}'
)
STATE = b'{"controller_epoch":1,"leader":0,"version":1,"leader_epoch":0,"isr":[0]}'
BROKER = (
    b'{"features":{},"listener_security_protocol_map":{"PLAINTEXT":"PLAINTEXT"},'
    b'"endpoints":["PLAINTEXT://127.0.0.1:23092"],"jmx_port":-1,"port":23092,"host":"127.0.0.1","version":5,'
    b'"timestamp":"1795265565918"}'
)


def test_broker() -> None:
    broker = BrokerRegistration.decode(0, BROKER)
    assert broker == BrokerRegistration(
        0, (Endpoint("PLAINTEXT", "127.0.0.1", 23092, "PLAINTEXT"),), timestamp_ms=1795265565918
    )
    assert broker.encode() == BROKER


def test_broker_with_several_listeners_and_a_rack() -> None:
    broker = BrokerRegistration(
        3, (Endpoint("INSIDE", "::1", 1, "SSL"), Endpoint("OUTSIDE", "example.org", 2, "PLAINTEXT")), rack="r1"
    )
    encoded = broker.encode()
    assert b'"endpoints":["INSIDE://[::1]:1","OUTSIDE://example.org:2"]' in encoded
    assert b'"port":2,"host":"example.org"' in encoded
    assert BrokerRegistration.decode(3, encoded) == broker


def test_broker_without_a_plaintext_listener() -> None:
    encoded = BrokerRegistration(3, (Endpoint("S", "h", 1, "SSL"),)).encode()
    assert b'"port":-1,"host":null' in encoded


def test_topic() -> None:
    topic = TopicAssignment.decode("plain", TOPIC)
    assert topic == TopicAssignment(Uuid.fromhex("1c67013b9cb74a0e925541e93a4c3f5a"), {0: (0,), 1: (0,)})
    assert topic.encode() == TOPIC


def test_topic_of_an_old_cluster_has_no_id() -> None:
    topic = TopicAssignment.decode("old", b'{"version":1,"partitions":{"1":[2,1],"0":[1,2]}}')
    assert topic.topic_id == ZERO_UUID
    assert list(topic.partitions.items()) == [(0, (1, 2)), (1, (2, 1))]
    assert b"topic_id" not in topic.encode()


def test_state() -> None:
    state = PartitionState.decode("plain", 0, STATE)
    assert state == PartitionState(leader=0, leader_epoch=0, isr=(0,), controller_epoch=1)
    assert state.encode() == STATE


def test_state_in_recovery() -> None:
    state = PartitionState(2, 7, (2, 1), 3, leader_recovery_state=1)
    assert PartitionState.decode("t", 0, state.encode()) == state
    assert b'"isr":[2,1],"leader_recovery_state":1' in state.encode()


def test_state_with_eligible_leaders() -> None:
    state = PartitionState(2, 7, (2,), 3, 0, EligibleLeaders((1,), 2, {2: 40, 1: 30}))
    assert PartitionState.decode("t", 0, state.encode()) == state
    own = b',"elr":[1],"last_known_leader":2,"broker_epochs":{"2":40,"1":30}}'
    assert state.encode() == state.replace(eligible=None).encode()[:-1] + own


def test_broker_that_keeps_eligible_leaders() -> None:
    registration = BrokerRegistration(1, (Endpoint("PLAINTEXT", "a", 9092, "PLAINTEXT"),), previous_epoch=-1)
    assert BrokerRegistration.decode(1, registration.encode()) == registration
    assert b'"odradek_previous_epoch":-1' in registration.encode()
    assert b"odradek" not in registration.replace(previous_epoch=None).encode()


def test_the_rest() -> None:
    assert znodes.encode_controller(0, 1795265566067) == (
        b'{"version":2,"brokerid":0,"timestamp":"1795265566067","kraftControllerEpoch":-1}'
    )
    assert znodes.decode_controller(b'{"version":1,"brokerid":4,"timestamp":"1"}') == 4
    assert znodes.decode_controller_epoch(znodes.encode_controller_epoch(12)) == 12
    cluster_id = b'{"version":"1","id":"TDnAIpGdRY6C5D62KMJRLA"}'
    assert znodes.decode_cluster_id(cluster_id) == "TDnAIpGdRY6C5D62KMJRLA"
    assert znodes.encode_cluster_id("TDnAIpGdRY6C5D62KMJRLA") == cluster_id
    config = b'{"version":1,"config":{"cleanup.policy":"compact","retention.ms":"1000"}}'
    assert znodes.encode_config(znodes.decode_config("/config/topics/t", config)) == config
    assert znodes.decode_config("/config/topics/t", None) == {}
    assert znodes.encode_config_change("topics/t") == b'{"version":2,"entity_path":"topics/t"}'
    assert znodes.encode_feature() == b'{"features":{},"version":2,"status":1}'
    block = b'{"version":1,"broker":1,"block_start":"0","block_end":"999"}'
    assert ProducerIdBlock.decode(block) == ProducerIdBlock(1, 0, 999)
    assert ProducerIdBlock(1, 0, 999).encode() == block


@pytest.mark.parametrize(
    "data", [None, b"", b"{", b"[]", b"7", b'{"version":1}', b'{"partitions":[],"isr":3}', b"\xff"]
)
@pytest.mark.parametrize(
    "decode",
    [
        lambda data: BrokerRegistration.decode(0, data),
        lambda data: TopicAssignment.decode("t", data) if data != b'{"version":1}' else znodes.decode_controller(data),
        lambda data: PartitionState.decode("t", 0, data),
        znodes.decode_controller,
        znodes.decode_cluster_id,
        lambda data: znodes.decode_config("/config/topics/t", data or b"x"),
        ProducerIdBlock.decode,
    ],
)
def test_what_cannot_be_understood_is_named(decode: Callable[[Any], Any], data: bytes | None) -> None:
    with pytest.raises(ZnodeFormatError, match=r"^/"):
        decode(data)


def test_a_controller_epoch_that_is_no_number() -> None:
    with pytest.raises(ZnodeFormatError, match="/controller_epoch"):
        znodes.decode_controller_epoch(b"one")
