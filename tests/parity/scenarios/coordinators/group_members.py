"""Incompatible members of a group: protocols, sizes, timeouts, assignments; static members."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from itertools import product
from typing import Any, NamedTuple

from protocol.errors import ErrorCode
from protocol.messages.group_admin import DescribeGroupsRequest
from protocol.messages.group_offsets import OffsetCommitRequest
from protocol.messages.groups import HeartbeatRequest, JoinGroupRequest, SyncGroupRequest
from tests.kit.wire_client import WireClient
from tests.parity.scenarios.group_offsets import commit, fetch_offsets
from tests.parity.scenarios.groups import (
    Protocols,
    describe,
    heartbeat,
    join,
    join_request,
    leave,
    list_groups,
    member,
    stable_group,
    static_group,
    subscription,
    sync,
    sync_request,
)
from tests.parity.subject import Subject, scenario, scenario_for_each

MAX_SIZE = 3
"""group.max.size of both brokers."""


def _of(*names: str) -> Protocols:
    return tuple((name, subscription("x")) for name in names)


def _asks_to_join(b: Subject, client: WireClient, group: str, leader: str, generation: int, **options: Any) -> bool:
    """Send a join of a new member; returns whether it waits for the leader; otherwise its answer is noted."""
    response = client.ask(join_request(group, **options), 9)
    if response.error_code == ErrorCode.MEMBER_ID_REQUIRED:
        client.send(join_request(group, response.member_id, **options), 9)
        beat = HeartbeatRequest(group_id=group, generation_id=generation, member_id=leader)
        b.until(lambda: b.quietly(beat, 4).error_code)
        return True
    b.note("refused", response)
    return False


class Meeting(NamedTuple):
    """The protocols of the first member, and of the second."""

    first: Sequence[str]
    second: Sequence[str]
    types: tuple[str, str] = ("consumer", "consumer")


MEETINGS = {
    "cooperative_and_eager": Meeting(["cooperative-sticky"], ["range"]),
    "cooperative_before_both": Meeting(["cooperative-sticky"], ["cooperative-sticky", "range"]),
    "both_before_eager": Meeting(["cooperative-sticky", "range"], ["range"]),
    "both_before_cooperative": Meeting(["cooperative-sticky", "range"], ["cooperative-sticky"]),
    "connectors": Meeting(["sessioned", "compatible"], ["compatible"], ("connect", "connect")),
    "a_connector_and_a_consumer": Meeting(["range"], ["range"], ("connect", "consumer")),
    "a_schema_registry": Meeting(["v0"], ["v0"], ("sr", "sr")),
    "a_protocol_without_a_name": Meeting([""], [""]),
    "types_in_other_letters": Meeting(["range"], ["range"], ("consumer", "Consumer")),
}


@scenario_for_each(MEETINGS)
def protocols(b: Subject, row: Meeting) -> None:
    group, (of_first, of_second) = b.coordinator(b.name("g")), row.types
    joined = b.quietly(
        join_request(group, member(b, group, protocols=_of(*row.first), protocol_type=of_first),
                     protocols=_of(*row.first), protocol_type=of_first), 9)  # fmt: skip
    b.note("first", joined)
    first, generation = joined.member_id, joined.generation_id
    sync(b, group, generation, first, {first: b"1"}, protocol_type=of_first, protocol_name=row.first[0])
    with b.another() as other:
        options = {"protocols": _of(*row.second), "protocol_type": of_second}
        if _asks_to_join(b, other, group, first, generation, **options):
            join(b, group, first, protocols=_of(*row.first), protocol_type=of_first)
            b.note("second", other.receive(JoinGroupRequest, 9))
        describe(b, group)
        list_groups(b, group)


@scenario_for_each({"dynamic": None, "static": "last"})
def more_than_the_group_may_have(b: Subject, instance: str | None) -> None:
    group, leader, _ = stable_group(b)
    with contextlib.ExitStack() as connections:
        others = [connections.enter_context(b.another()) for _ in range(MAX_SIZE - 1)]
        for other in others:
            other.send(join_request(group, member(b, group, other)), 9)
        b.until(lambda: len(b.quietly(DescribeGroupsRequest(groups=[group]), 5).groups[0].members) == MAX_SIZE)
        b.quietly(join_request(group, leader), 9)
        for other in others:
            other.receive(JoinGroupRequest, 9)
        for version in (5, 9):
            join(b, group, instance=instance, version=version)
        join(b, group, "nobody", instance=instance)
        leave(b, group, (leader, None))
        describe(b, group)


@scenario_for_each({"rebalance": "rebalance_timeout_ms", "session": "session_timeout_ms"})
def strange_timeouts(b: Subject, name: str) -> None:
    timeouts = (-(2**31), -1, 0, 1, 5_999, 6_000, 1_800_000, 1_800_001, 2**31 - 1)
    for number, (version, timeout) in enumerate(product((0, 9), timeouts)):
        group = b.coordinator(b.name(f"g{number}"))
        options: dict[str, Any] = {name: timeout}
        answer = join(b, group, version=version, **options)
        if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            join(b, group, answer.member_id, **options)


@scenario_for_each({"small": 1_000, "large": 900_000, "too_large": 1_100_000})
def sizes_of_assignments(b: Subject, size: int) -> None:
    group = b.coordinator(b.name("g"))
    joined = b.quietly(join_request(group, member(b, group)), 9)
    who = group, joined.generation_id, joined.member_id
    answer = b.quietly(_assign(*who, b"a" * size), 5)
    b.note("SyncGroup", [answer.error_code, len(answer.assignment)])
    heartbeat(b, *who)
    group_after = b.quietly(DescribeGroupsRequest(groups=[group]), 5).groups[0]
    b.note("state", [group_after.group_state, [len(each.member_assignment) for each in group_after.members]])


def _assign(group: str, generation: int, member_id: str, assignment: bytes) -> SyncGroupRequest:
    return sync_request(group, generation, member_id, {member_id: assignment})


@scenario_for_each({"of_members": b"1", "of_strangers": b"2", "twice": b"3"})
def assignments(b: Subject, kind: bytes) -> None:
    group = b.coordinator(b.name("g"))
    joined = b.quietly(join_request(group, member(b, group)), 9)
    asked = _assign(group, joined.generation_id, joined.member_id, b"mine")
    assign = SyncGroupRequest.SyncGroupRequestAssignment
    extra = {b"1": [], b"2": [assign(member_id="nobody", assignment=b"x")],
             b"3": [assign(member_id=joined.member_id, assignment=b"again")]}  # fmt: skip
    asked.assignments += extra[kind]
    b.ask(asked, 5)
    describe(b, group)


@scenario_for_each({"empty": "", "long": "x" * 32_000, "strange": "ä/\0…"})
def group_ids(b: Subject, group: str) -> None:
    b.coordinator(group or b.name("g"))
    for ask in (join, leave, describe):
        ask(b, group)
    heartbeat(b, group, 1, "nobody")
    commit(b, group, b.topic(), 1)
    fetch_offsets(b, group, everything=True)


@scenario
def too_many_offsets_for_a_batch(b: Subject) -> None:
    group, topic = b.coordinator(b.name("g")), b.topic(partitions=300)
    part = OffsetCommitRequest.OffsetCommitRequestPartition
    parts = [part(partition_index=index, committed_offset=1, committed_metadata="x" * 4096) for index in range(300)]
    topics = [OffsetCommitRequest.OffsetCommitRequestTopic(name=topic, partitions=parts)]
    b.ask(OffsetCommitRequest(group_id=group, topics=topics), 9)
    fetch_offsets(b, group, (topic, [0, 299]))


@scenario_for_each({"twice": (0, 0), "missing": (0, 7), "negative": (-1, 0)})
def partitions_in_one_request(b: Subject, indexes: tuple[int, ...]) -> None:
    group, topic = b.coordinator(b.name("g")), b.topic()
    part = OffsetCommitRequest.OffsetCommitRequestPartition
    parts = [
        part(partition_index=index, committed_offset=5 + at, committed_metadata="") for at, index in enumerate(indexes)
    ]
    topics = [OffsetCommitRequest.OffsetCommitRequestTopic(name=topic, partitions=parts)] * 2
    for version in (1, 9):
        b.ask(OffsetCommitRequest(group_id=group, topics=topics), version)
    fetch_offsets(b, group, (topic, list(indexes)), (topic, [0]))
    fetch_offsets(b, group, (topic, list(indexes)), version=1)


@scenario_for_each({"the_same": _of("range"), "others": _of("sticky"), "more": _of("range", "sticky")})
def a_static_leader_comes_back_with(b: Subject, protocols: Protocols) -> None:
    group, old, generation = static_group(b)
    for version in (9, 5):
        joined = join(b, group, instance="one", protocols=protocols, version=version)
        for who in (old, joined.member_id):
            heartbeat(b, group, generation, who, group_instance_id="one")
            sync(b, group, joined.generation_id, who, {who: b"x"}, group_instance_id="one")
    describe(b, group)


@scenario
def one_of_two_static_members_comes_back(b: Subject) -> None:
    group, first, generation = static_group(b)
    with b.another() as other:
        other.send(join_request(group, instance="two"), 9)
        beat = HeartbeatRequest(group_id=group, generation_id=generation, member_id=first)
        b.until(lambda: b.quietly(beat, 4).error_code)
        # Its successor waits with the same instance id, so the first one is fenced.
        with b.another() as successor:
            successor.send(join_request(group, instance="two"), 9)
            b.note("fenced", other.receive(JoinGroupRequest, 9))
            join(b, group, first, instance="one")
            b.note("successor", successor.receive(JoinGroupRequest, 9))
        leave(b, group, ("", "two"), ("", "two"), ("", "three"))
        describe(b, group)


@scenario
def a_static_member_and_a_dynamic_one(b: Subject) -> None:
    group, member_id, generation = stable_group(b)
    join(b, group, member_id, instance="one")
    heartbeat(b, group, generation, member_id, group_instance_id="one")
    commit(b, group, b.topic(), 1, generation=generation, member_id=member_id, group_instance_id="one")
    leave(b, group, (member_id, "one"))
    leave(b, group, (member_id, None))
