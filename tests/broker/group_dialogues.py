"""What is asked of a group coordinator, in order, by whom. Apache Kafka 3.9.1's answers are in recorded/groups.json.

    python -m tests.broker.group_dialogues HOST:PORT [NAME...]

records them anew, from a broker started with `group_stage.SETTINGS`.
"""

from __future__ import annotations

import json
import os
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from protocol.errors import ErrorCode
from protocol.messages import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    HeartbeatRequest,
    InitProducerIdRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    ListGroupsRequest,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
    SyncGroupRequest,
)
from tests.broker.group_stage import Remote, Stage

RECORDED = Path(__file__).parent / "recorded" / "groups.json"

Dialogue = Callable[[Stage], None]
DIALOGUES: dict[str, Dialogue] = {}

JOIN, SYNC, HEARTBEAT, LEAVE, COMMIT, FETCH, DESCRIBE, LIST, DELETE = 9, 5, 4, 5, 9, 9, 5, 5, 2
"""The newest versions."""
SESSION_MS, REBALANCE_MS = 10_000, 10_000


def dialogue(function: Dialogue) -> Dialogue:
    """Register a dialogue."""
    DIALOGUES[function.__name__.replace("_", "-")] = function
    return function


# -- requests ----------------------------------------------------------------------------------------------------------


def subscription(*topics: str) -> bytes:
    """A consumer's metadata (ConsumerProtocolSubscription v0)."""
    names = b"".join(struct.pack(">h", len(topic)) + topic.encode() for topic in topics)
    return struct.pack(">hi", 0, len(topics)) + names + struct.pack(">i", -1)


def join(
    group: str,
    member: str = "",
    *,
    instance: str | None = None,
    protocols: list[tuple[str, bytes]] | None = None,
    session_ms: int = SESSION_MS,
    rebalance_ms: int = REBALANCE_MS,
    protocol_type: str = "consumer",
) -> JoinGroupRequest:
    chosen = [("range", subscription("t"))] if protocols is None else protocols
    return JoinGroupRequest(
        group_id=group,
        session_timeout_ms=session_ms,
        rebalance_timeout_ms=rebalance_ms,
        member_id=member,
        group_instance_id=instance,
        protocol_type=protocol_type,
        protocols=[JoinGroupRequest.JoinGroupRequestProtocol(name=name, metadata=data) for name, data in chosen],
    )


def sync(
    group: str,
    member: str,
    generation: int,
    assignments: dict[str, bytes] | None = None,
    *,
    instance: str | None = None,
    protocol_type: str | None = "consumer",
    protocol_name: str | None = "range",
) -> SyncGroupRequest:
    return SyncGroupRequest(
        group_id=group,
        generation_id=generation,
        member_id=member,
        group_instance_id=instance,
        protocol_type=protocol_type,
        protocol_name=protocol_name,
        assignments=[
            SyncGroupRequest.SyncGroupRequestAssignment(member_id=each, assignment=data)
            for each, data in (assignments or {}).items()
        ],
    )


def heartbeat(group: str, member: str, generation: int, instance: str | None = None) -> HeartbeatRequest:
    return HeartbeatRequest(group_id=group, generation_id=generation, member_id=member, group_instance_id=instance)


def leave(group: str, *members: tuple[str, str | None]) -> LeaveGroupRequest:
    return LeaveGroupRequest(
        group_id=group,
        members=[
            LeaveGroupRequest.MemberIdentity(member_id=member, group_instance_id=instance, reason="why not")
            for member, instance in members
        ],
    )


def commit(
    group: str,
    offsets: list[tuple[str, int, int]],
    member: str = "",
    generation: int = -1,
    *,
    instance: str | None = None,
    metadata: str | None = "",
    leader_epoch: int = -1,
    retention_ms: int = -1,
    timestamp: int = -1,
) -> OffsetCommitRequest:
    topics: dict[str, list[OffsetCommitRequest.OffsetCommitRequestPartition]] = {}
    for topic, partition, offset in offsets:
        topics.setdefault(topic, []).append(
            OffsetCommitRequest.OffsetCommitRequestPartition(
                partition_index=partition,
                committed_offset=offset,
                committed_leader_epoch=leader_epoch,
                commit_timestamp=timestamp,
                committed_metadata=metadata,
            )
        )
    return OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=generation,
        member_id=member,
        group_instance_id=instance,
        retention_time_ms=retention_ms,
        topics=[
            OffsetCommitRequest.OffsetCommitRequestTopic(name=name, partitions=partitions)
            for name, partitions in topics.items()
        ],
    )


def fetch(group: str, topics: dict[str, list[int]] | None, *, stable: bool = False) -> OffsetFetchRequest:
    """For versions below 8."""
    asked = None
    if topics is not None:
        asked = [
            OffsetFetchRequest.OffsetFetchRequestTopic(name=name, partition_indexes=indexes)
            for name, indexes in topics.items()
        ]
    return OffsetFetchRequest(group_id=group, topics=asked, require_stable=stable)


def fetch_groups(groups: dict[str, dict[str, list[int]] | None], *, stable: bool = False) -> OffsetFetchRequest:
    """For versions 8 and above."""
    return OffsetFetchRequest(
        groups=[
            OffsetFetchRequest.OffsetFetchRequestGroup(
                group_id=group,
                topics=None
                if topics is None
                else [
                    OffsetFetchRequest.OffsetFetchRequestTopics(name=name, partition_indexes=indexes)
                    for name, indexes in topics.items()
                ],
            )
            for group, topics in groups.items()
        ],
        require_stable=stable,
    )


def delete_offsets(group: str, topics: dict[str, list[int]]) -> OffsetDeleteRequest:
    return OffsetDeleteRequest(
        group_id=group,
        topics=[
            OffsetDeleteRequest.OffsetDeleteRequestTopic(
                name=name,
                partitions=[OffsetDeleteRequest.OffsetDeleteRequestPartition(partition_index=each) for each in indexes],
            )
            for name, indexes in topics.items()
        ],
    )


def describe(*groups: str, operations: bool = False) -> DescribeGroupsRequest:
    return DescribeGroupsRequest(groups=list(groups), include_authorized_operations=operations)


# -- what most dialogues begin with ------------------------------------------------------------------------------------


def new_id(stage: Stage, who: str, group: str, **how: Any) -> str:
    """A member id for `who`, as JoinGroup gives it; not written down."""
    response: Any = stage.connection(who).ask(join(group, **how), JOIN)
    assert response.error_code == ErrorCode.MEMBER_ID_REQUIRED, response
    return str(response.member_id)


def form(stage: Stage, group: str, who: str, **how: Any) -> tuple[dict[str, str], int]:
    """A stable group of the members in `who`, led by the first: their ids and the generation; not written down."""
    ids = {each: new_id(stage, each, group, **how) for each in who}
    for each in who:
        stage.send(each, join(group, ids[each], **how), JOIN)
        if each == who[0]:
            stage.sleep(0.03)
    joined: list[Any] = [stage.connection(each).receive(JoinGroupRequest, JOIN) for each in who]
    assert {each.error_code for each in joined} == {ErrorCode.NONE}, joined
    assert {each.leader for each in joined} == {ids[who[0]]}
    generation = joined[0].generation_id
    protocol = {"protocol_type": joined[0].protocol_type, "protocol_name": joined[0].protocol_name}
    assignments = {ids[each]: each.encode() for each in who}
    for each in who:
        stage.send(each, sync(group, ids[each], generation, assignments if each == who[0] else None, **protocol), SYNC)
    for each in who:
        response: Any = stage.connection(each).receive(SyncGroupRequest, SYNC)
        assert response.assignment == each.encode()
    return ids, generation


def form_static(stage: Stage, group: str, who: str, **how: Any) -> tuple[dict[str, str], int]:
    """A stable group of static members whose instance ids are in `who`; not written down."""
    for each in who:
        stage.send(each, join(group, instance=each, **how), JOIN)
        if each == who[0]:
            stage.sleep(0.03)
    joined: dict[str, Any] = {each: stage.connection(each).receive(JoinGroupRequest, JOIN) for each in who}
    ids = {each: joined[each].member_id for each in who}
    generation = joined[who[0]].generation_id
    assert joined[who[0]].leader == ids[who[0]]
    assignments = {ids[each]: each.encode() for each in who}
    for each in who:
        given = assignments if each == who[0] else None
        stage.send(each, sync(group, ids[each], generation, given, instance=each), SYNC)
    for each in who:
        response: Any = stage.connection(each).receive(SyncGroupRequest, SYNC)
        assert response.assignment == each.encode()
    return ids, generation


def list_own(stage: Stage, who: str, request: ListGroupsRequest, version: int) -> None:
    """ListGroups, with only this dialogue's groups written down."""
    response: Any = stage.connection(who).ask(request, version)
    response.groups = [group for group in response.groups if group.group_id.startswith(stage.name)]
    stage.note(f"{who} ListGroups v{version}", response)


# -- the dialogues -----------------------------------------------------------------------------------------------------


@dialogue
def life_of_a_member(stage: Stage) -> None:
    topic = stage.topic()
    for version in range(10):
        group = stage.group(f"v{version}")
        ids = stage.ask("a", join(group), version)
        if ids.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            ids = stage.ask("a", join(group, ids.member_id), version)
        member, generation = ids.member_id, ids.generation_id
        lower = min(version, SYNC)
        protocol = {} if lower >= 5 else {"protocol_type": None, "protocol_name": None}
        stage.ask("a", sync(group, member, generation, {member: b"all"}, **protocol), lower)
        stage.ask("a", heartbeat(group, member, generation), min(version, HEARTBEAT))
        if version > 0:
            stage.ask("a", commit(group, [(topic, 0, 7), (topic, 1, 8)], member, generation), version)
            asked = {topic: [0, 1]}
            newest = version > 7
            stage.ask("a", fetch_groups({group: asked}) if newest else fetch(group, asked), version)
        stage.ask("a", describe(group), min(version, DESCRIBE))
        if version < 3:
            stage.ask("a", LeaveGroupRequest(group_id=group, member_id=member), version)
        else:
            stage.ask("a", leave(group, (member, None)), min(version, LEAVE))
        stage.ask("a", describe(group), min(version, DESCRIBE))


@dialogue
def refused_to_join(stage: Stage) -> None:
    group = stage.group()
    for version in (0, 1, 4, 5, 6, 7, 9):
        stage.ask("x", join(""), version)
        stage.ask("x", join(group, "nobody"), version)
        stage.ask("x", join(group, session_ms=99), version)
        stage.ask("x", join(group, session_ms=20_001), version)
    stage.ask("x", join(stage.group("no-type"), protocol_type=""), JOIN)
    stage.ask("x", join(stage.group("no-protocols"), protocols=[]), JOIN)
    ids, _ = form(stage, group, "a")
    stage.ask("x", join(group, "nobody"), JOIN)
    stage.ask("x", join(group, "nobody", instance="nobody"), JOIN)
    stage.ask("x", join(group, ids["a"], instance="nobody"), JOIN)
    stage.ask("x", join(group, protocol_type="connect"), JOIN)
    stage.ask("x", join(group, protocols=[("other", b"")]), JOIN)
    stage.ask("x", join(group, protocols=[]), JOIN)
    stage.ask("x", join(group, ids["a"], protocol_type="connect"), JOIN)
    stage.ask("x", join(group, ids["a"], protocols=[("other", b"")]), 5)
    stage.ask("x", join(group, instance="", session_ms=1), JOIN)
    stage.ask("a", heartbeat(group, ids["a"], 1), HEARTBEAT)


@dialogue
def refused_to_sync(stage: Stage) -> None:
    group = stage.group()
    for version in range(6):
        protocol = {} if version >= 5 else {"protocol_type": None, "protocol_name": None}
        stage.ask("x", sync("", "nobody", 1, **protocol), version)
        stage.ask("x", sync(group, "nobody", 1, **protocol), version)
    ids, generation = form(stage, group, "ab")
    a = ids["a"]
    stage.ask("x", sync(group, "nobody", generation), SYNC)
    stage.ask("x", sync(group, a, generation + 1), SYNC)
    stage.ask("x", sync(group, a, generation - 1), SYNC)
    stage.ask("x", sync(group, a, generation, protocol_name="other"), SYNC)
    stage.ask("x", sync(group, a, generation, protocol_type="other"), SYNC)
    stage.ask("x", sync(group, a, generation, protocol_name=None), SYNC)
    stage.ask("x", sync(group, a, generation, protocol_type=None), SYNC)
    stage.ask("x", sync(group, a, generation, instance="nobody"), SYNC)
    stage.ask("a", sync(group, a, generation, {a: b"changed"}), SYNC)
    stage.ask("b", sync(group, ids["b"], generation), SYNC)
    stage.send("a", join(group, a), JOIN)
    stage.sleep(0.1)
    stage.ask("b", sync(group, ids["b"], generation), SYNC)
    stage.send("b", join(group, ids["b"]), JOIN)
    for who in "ab":
        stage.receive(who, JoinGroupRequest, JOIN)
    stage.send("b", sync(group, ids["b"], generation + 1), SYNC)
    stage.sleep(0.1)
    stage.send("a", sync(group, a, generation + 1, {a: b"only a", "stranger": b"nothing"}), SYNC)
    for who in "ab":
        stage.receive(who, SyncGroupRequest, SYNC)


@dialogue
def heartbeats(stage: Stage) -> None:
    group = stage.group()
    for version in range(5):
        stage.ask("x", heartbeat("", "nobody", 1), version)
        stage.ask("x", heartbeat(group, "nobody", 1), version)
    ids, generation = form(stage, group, "ab")
    a, b = ids["a"], ids["b"]
    stage.ask("a", heartbeat(group, a, generation), HEARTBEAT)
    stage.ask("a", heartbeat(group, a, generation + 1), HEARTBEAT)
    stage.ask("a", heartbeat(group, "nobody", generation), HEARTBEAT)
    stage.ask("a", heartbeat(group, a, generation, "nobody"), HEARTBEAT)
    stage.send("a", join(group, a), JOIN)
    stage.sleep(0.1)
    stage.ask("b", heartbeat(group, b, generation), HEARTBEAT)
    stage.ask("x", describe(group), DESCRIBE)
    stage.ask("b", join(group, b), JOIN)
    stage.receive("a", JoinGroupRequest, JOIN)
    stage.ask("b", heartbeat(group, b, generation), HEARTBEAT)
    stage.ask("b", heartbeat(group, b, generation + 1), HEARTBEAT)
    stage.ask("x", describe(group), DESCRIBE)
    stage.ask("x", leave(group, (a, None), (b, None)), LEAVE)
    stage.ask("b", heartbeat(group, b, generation + 1), HEARTBEAT)
    stage.ask("x", describe(group), DESCRIBE)


@dialogue
def rebalances(stage: Stage) -> None:
    group = stage.group()
    ids, generation = form(stage, group, "ab")
    a, b = ids["a"], ids["b"]
    # A follower whose metadata did not change is told the current generation; a leader starts a new one.
    stage.ask("b", join(group, b), JOIN)
    stage.send("a", join(group, a), JOIN)
    stage.sleep(0.1)
    stage.ask("b", join(group, b), JOIN)
    stage.receive("a", JoinGroupRequest, JOIN)
    # The same again, while the assignment is awaited: everybody gets what it got.
    stage.ask("a", join(group, a), JOIN)
    stage.ask("b", join(group, b), 6)
    # Changed metadata starts over, and sends away who waits for an assignment.
    stage.send("a", sync(group, a, generation + 1, {a: b"1", b: b"2"}), SYNC)
    stage.receive("a", SyncGroupRequest, SYNC)
    stage.send("b", join(group, b, protocols=[("range", subscription("t", "u"))]), JOIN)
    stage.sleep(0.1)
    stage.ask("a", heartbeat(group, a, generation + 1), HEARTBEAT)
    stage.ask("a", join(group, a), JOIN)
    stage.receive("b", JoinGroupRequest, JOIN)
    stage.send("b", sync(group, b, generation + 2), SYNC)
    stage.sleep(0.1)
    third = new_id(stage, "c", group)
    stage.send("c", join(group, third), JOIN)
    stage.receive("b", SyncGroupRequest, SYNC)
    stage.send("b", join(group, b), JOIN)
    stage.ask("a", join(group, a), JOIN)
    for who in "bc":
        stage.receive(who, JoinGroupRequest, JOIN)
    stage.ask("x", describe(group), DESCRIBE)
    stage.ask("a", sync(group, a, generation + 3, {third: b"c", a: b"a", b: b"b"}), SYNC)
    stage.ask("b", sync(group, b, generation + 3), SYNC)
    stage.ask("c", sync(group, third, generation + 3), SYNC)
    stage.ask("x", describe(group), DESCRIBE)
    # The leader goes; who is left is told to join again.
    stage.ask("a", leave(group, (third, None), (a, None)), LEAVE)
    stage.ask("b", heartbeat(group, b, generation + 3), HEARTBEAT)
    stage.ask("b", join(group, b), JOIN)


@dialogue
def silent_members(stage: Stage) -> None:
    group = stage.group("session")
    ids, generation = form(stage, group, "ab", session_ms=1000)
    for _ in range(4):
        stage.sleep(0.4)
        stage.ask("a", heartbeat(group, ids["a"], generation), HEARTBEAT)
    stage.ask("b", heartbeat(group, ids["b"], generation), HEARTBEAT)
    stage.ask("a", join(group, ids["a"], session_ms=1000), JOIN)
    # One that does not join again in time is left out, however alive it is.
    group = stage.group("rebalance")
    ids, generation = form(stage, group, "ab", rebalance_ms=1000)
    stage.send("a", join(group, ids["a"], rebalance_ms=1000), JOIN)
    stage.sleep(0.5)
    stage.ask("b", heartbeat(group, ids["b"], generation), HEARTBEAT)
    stage.receive("a", JoinGroupRequest, JOIN)
    stage.ask("b", heartbeat(group, ids["b"], generation), HEARTBEAT)
    stage.ask("b", join(group, ids["b"]), JOIN)
    # One that never asks for its assignment is left out too (KAFKA-9752).
    group = stage.group("sync")
    ids, generation = form(stage, group, "ab", rebalance_ms=1000)
    stage.send("a", join(group, ids["a"], rebalance_ms=1000), JOIN)
    stage.sleep(0.1)
    stage.ask("b", join(group, ids["b"], rebalance_ms=1000), JOIN)
    stage.receive("a", JoinGroupRequest, JOIN)
    stage.ask("a", sync(group, ids["a"], generation + 1, {}), SYNC)
    stage.ask("b", heartbeat(group, ids["b"], generation + 1), HEARTBEAT)
    stage.sleep(1.3)
    stage.ask("b", heartbeat(group, ids["b"], generation + 1), HEARTBEAT)
    stage.ask("a", heartbeat(group, ids["a"], generation + 1), HEARTBEAT)
    # Ids that nobody comes back with are dropped, and nobody waits for them any more.
    group = stage.group("pending")
    lost = new_id(stage, "x", group, session_ms=1000)
    member = new_id(stage, "a", group)
    stage.ask("a", join(group, member), JOIN)
    stage.ask("x", describe(group), DESCRIBE)
    stage.sleep(1)
    stage.ask("x", join(group, lost), JOIN)
    other = new_id(stage, "x", group)
    stage.send("a", join(group, member, protocols=[("range", b"")]), JOIN)
    stage.sleep(0.1)
    stage.ask("x", leave(group, (other, None)), LEAVE)
    stage.receive("a", JoinGroupRequest, JOIN)


@dialogue
def static_members(stage: Stage) -> None:
    for version in (5, 8, 9):
        group = stage.group(f"v{version}")
        ids, generation = form_static(stage, group, "ab")
        # A follower, then the leader, come back without their member ids: nothing moves.
        follower = stage.ask("b", join(group, instance="b"), version).member_id
        stage.ask("b", heartbeat(group, ids["b"], generation, "b"), HEARTBEAT)
        stage.ask("b", heartbeat(group, ids["b"], generation), HEARTBEAT)
        stage.ask("b", heartbeat(group, follower, generation, "b"), HEARTBEAT)
        stage.ask("b", sync(group, follower, generation, instance="b"), SYNC)
        leader = stage.ask("a", join(group, instance="a"), version).member_id
        stage.ask("a", sync(group, leader, generation, instance="a"), SYNC)
        stage.ask("a", heartbeat(group, leader, generation, "a"), HEARTBEAT)
        stage.ask("x", describe(group), DESCRIBE)
        stage.ask("x", join(group, ids["a"], instance="a"), version)
        stage.ask("x", sync(group, ids["a"], generation, instance="a"), SYNC)
        stage.ask("x", commit(group, [], ids["a"], generation, instance="a"), COMMIT)
        stage.ask("x", leave(group, (ids["a"], "a"), (leader, "b"), (leader, None), ("", "a"), ("", "b")), LEAVE)
        stage.ask("x", describe(group), DESCRIBE)


@dialogue
def static_members_that_change(stage: Stage) -> None:
    group = stage.group("protocols")
    both = [("range", subscription("t")), ("sticky", subscription("t"))]
    ids, generation = form_static(stage, group, "ab", protocols=both)
    stage.send("b", join(group, instance="b", protocols=both[1:]), JOIN)
    stage.sleep(0.1)
    stage.ask("a", heartbeat(group, ids["a"], generation, "a"), HEARTBEAT)
    stage.ask("a", join(group, ids["a"], instance="a", protocols=both), JOIN)
    second = stage.receive("b", JoinGroupRequest, JOIN).member_id
    # While the assignment is awaited, a replaced member starts the rebalance again.
    stage.send("b", sync(group, second, generation + 1, instance="b", protocol_name="sticky"), SYNC)
    stage.sleep(0.1)
    stage.send("c", join(group, instance="b", protocols=both), JOIN)
    stage.receive("b", SyncGroupRequest, SYNC)
    stage.ask("a", join(group, ids["a"], instance="a", protocols=both), JOIN)
    third = stage.receive("c", JoinGroupRequest, JOIN).member_id
    # While members gather, the one that waits under the old id is fenced.
    stage.send("a", join(group, ids["a"], instance="a", protocols=both[:1]), JOIN)
    stage.sleep(0.1)
    stage.send("c", join(group, instance="b", protocols=both), JOIN)
    stage.receive("c", JoinGroupRequest, JOIN)
    stage.receive("a", JoinGroupRequest, JOIN)
    stage.ask("x", heartbeat(group, third, generation + 3, "b"), HEARTBEAT)
    # An absent static member is waited for until its session ends.
    group = stage.group("absent")
    ids, generation = form_static(stage, group, "ab", session_ms=1500, rebalance_ms=500)
    stage.ask("a", join(group, ids["a"], instance="a", session_ms=1500, rebalance_ms=500), JOIN)
    stage.ask("a", sync(group, ids["a"], generation + 1, {ids["b"]: b"still"}, instance="a"), SYNC)
    stage.ask("x", describe(group), DESCRIBE)


@dialogue
def too_many_members(stage: Stage) -> None:
    group = stage.group()
    ids, generation = form(stage, group, "abcd")
    stage.ask("e", join(group), JOIN)
    stage.ask("e", join(group), 3)
    stage.ask("e", join(group, instance="e"), JOIN)
    stage.ask("a", heartbeat(group, ids["a"], generation), HEARTBEAT)
    group = stage.group("gathering")
    pending = {who: new_id(stage, who, group) for who in "abcde"}
    for who in "abcd":
        stage.send(who, join(group, pending[who]), JOIN)
        stage.sleep(0.02)
    stage.ask("e", join(group, pending["e"]), JOIN)
    for who in "abcd":
        stage.receive(who, JoinGroupRequest, JOIN)


@dialogue
def votes(stage: Stage) -> None:
    group = stage.group()
    preferences = {"a": ["x", "y", "z"], "b": ["y", "z", "x"], "c": ["z", "y"]}
    ids = {who: new_id(stage, who, group) for who in preferences}
    for who, names in preferences.items():
        protocols = [(name, f"{who} {name}".encode()) for name in names]
        stage.send(who, join(group, ids[who], protocols=protocols, protocol_type="mine"), JOIN)
        stage.sleep(0.03)
    for who in preferences:
        stage.receive(who, JoinGroupRequest, JOIN)


@dialogue
def first_generation_waits_for_company(stage: Stage) -> None:
    group = stage.group()
    ids = {who: new_id(stage, who, group) for who in "abc"}
    stage.send("a", join(group, ids["a"]), JOIN)
    stage.sleep(0.2)
    stage.send("b", join(group, ids["b"]), JOIN)
    stage.sleep(0.2)
    stage.send("c", join(group, ids["c"]), JOIN)
    for who in "abc":
        stage.receive(who, JoinGroupRequest, JOIN)
    # The rebalance timeout ends the gathering.
    group = stage.group("short")
    ids = {who: new_id(stage, who, group) for who in "abc"}
    stage.send("a", join(group, ids["a"], rebalance_ms=400), JOIN)
    stage.sleep(0.2)
    stage.send("b", join(group, ids["b"], rebalance_ms=400), JOIN)
    stage.sleep(0.4)
    for who in "ab":
        stage.receive(who, JoinGroupRequest, JOIN)


@dialogue
def leaving(stage: Stage) -> None:
    group = stage.group()
    for version in range(6):
        if version < 3:
            stage.ask("x", LeaveGroupRequest(group_id="", member_id="nobody"), version)
            stage.ask("x", LeaveGroupRequest(group_id=group, member_id="nobody"), version)
        else:
            stage.ask("x", leave("", ("nobody", None)), version)
            stage.ask("x", leave(group, ("nobody", None), ("", "nobody")), version)
    ids, generation = form(stage, group, "ab")
    stage.ask("x", LeaveGroupRequest(group_id=group, member_id="nobody"), 2)
    stage.ask("x", LeaveGroupRequest(group_id=group, member_id=""), 2)
    stage.ask("x", leave(group), LEAVE)
    stage.ask("x", leave(group, ("nobody", None), ("", None), ("", "nobody"), (ids["a"], "nobody")), LEAVE)
    stage.ask("a", heartbeat(group, ids["a"], generation), HEARTBEAT)
    # One whose JoinGroup waits goes.
    stage.send("b", join(group, ids["b"], protocols=[("range", b"")]), JOIN)
    stage.sleep(0.1)
    stage.ask("x", leave(group, (ids["b"], None)), LEAVE)
    stage.receive("b", JoinGroupRequest, JOIN)
    stage.ask("x", LeaveGroupRequest(group_id=group, member_id=ids["a"]), 0)
    stage.ask("x", describe(group), DESCRIBE)


@dialogue
def refused_commits(stage: Stage) -> None:
    topic, group = stage.topic(), stage.group()
    missing = f"{topic}-missing"
    stage.ask("x", commit(group, [(topic, 0, 1)], "nobody", 3), COMMIT)
    stage.ask("x", commit(group, [(topic, 0, 1)], "nobody", -1), COMMIT)
    stage.ask("x", commit(stage.group("m"), [(topic, 0, 1), (topic, 2, 1), (topic, -1, 1), (missing, 0, 1)]), COMMIT)
    stage.ask("x", commit(stage.group("m"), [(missing, 0, 1)]), COMMIT)
    stage.ask("x", commit(stage.group("m"), []), COMMIT)
    stage.ask("x", commit(stage.group("m"), [(topic, 0, 1)], metadata="m" * 4096), COMMIT)
    stage.ask("x", commit(stage.group("m"), [(topic, 0, 2)], metadata="m" * 4097), COMMIT)
    stage.ask("x", commit(stage.group("m"), [(topic, 0, 3)], metadata="\u00e9" * 4096), COMMIT)
    stage.ask("x", commit(stage.group("m"), [(topic, 0, 4)], metadata="\U0001f600" * 2049), COMMIT)
    stage.ask("x", commit(stage.group("m"), [(topic, 1, -1)]), COMMIT)
    stage.ask("x", commit(stage.group("m"), [(topic, 1, -2)]), COMMIT)
    stage.ask("x", fetch_groups({stage.group("m"): None}), FETCH)
    ids, generation = form(stage, group, "ab")
    a = ids["a"]
    for version in (1, 2, 5, 6, 9):
        stage.ask("a", commit(group, [(topic, 0, version)], a, generation), version)
        stage.ask("a", commit(group, [(topic, 0, 99)], a, generation + 1), version)
        stage.ask("a", commit(group, [(topic, 0, 99)], "nobody", generation), version)
        stage.ask("a", commit(group, [(topic, 0, 99)]), version)
        stage.ask("a", commit(group, [(topic, 0, 99)], a, -1), version)
    stage.ask("a", commit(group, [(topic, 0, 99)], a, generation, instance="nobody"), COMMIT)
    stage.send("a", join(group, a), JOIN)
    stage.sleep(0.1)
    stage.ask("b", commit(group, [(topic, 1, 50)], ids["b"], generation), COMMIT)
    stage.ask("b", join(group, ids["b"]), JOIN)
    stage.receive("a", JoinGroupRequest, JOIN)
    stage.ask("b", commit(group, [(topic, 1, 51)], ids["b"], generation), COMMIT)
    stage.ask("b", commit(group, [(topic, 1, 51)], ids["b"], generation + 1), COMMIT)
    stage.ask("x", commit(group, [(topic, 1, 52)]), COMMIT)
    stage.ask("x", fetch_groups({group: None}), FETCH)
    stage.ask("x", leave(group, (a, None), (ids["b"], None)), LEAVE)
    stage.ask("x", commit(group, [(topic, 1, 53)]), COMMIT)
    stage.ask("x", commit(group, [(topic, 1, 54)], a, generation + 2), COMMIT)
    stage.ask("x", commit(group, [(topic, 1, 55)], "anybody", -1), COMMIT)
    stage.ask("x", fetch_groups({group: None}), FETCH)


@dialogue
def fetched_offsets(stage: Stage) -> None:
    topic, other, group = stage.topic(), stage.topic("u"), stage.group()
    missing = f"{topic}-missing"
    stage.ask("x", commit(group, [(topic, 0, 10), (other, 1, 20)], metadata="note", leader_epoch=3), COMMIT)
    stage.ask("x", commit(group, [(topic, 1, 11)], metadata=None), 3)
    stage.ask("x", commit("", [(topic, 0, 77)]), COMMIT)
    stage.ask("x", commit(group, [(other, 0, 12)], timestamp=1000), 1)
    for version in range(1, 8):
        stage.ask("x", fetch(group, {topic: [0, 1, 2], missing: [0]}), version)
        stage.ask("x", fetch(stage.group("nobody"), {topic: [0]}), version)
        stage.ask("x", fetch(group, {}), version)
        if version >= 2:
            stage.ask("x", fetch(group, None), version)
            stage.ask("x", fetch(stage.group("nobody"), None), version)
    stage.ask("x", fetch(group, {topic: [0]}, stable=True), 7)
    stage.ask("x", fetch("", {topic: [0]}), 7)
    for version in (8, 9):
        stage.ask("x", fetch_groups({group: {topic: [0, 5], missing: [0]}, stage.group("nobody"): None}), version)
        stage.ask("x", fetch_groups({group: None, stage.group("nobody"): {topic: [0]}}, stable=True), version)
        stage.ask("x", fetch_groups({group: {}}), version)


@dialogue
def offsets_before_kafka_kept_them(stage: Stage) -> None:
    topic, other, group = stage.topic(), stage.topic("u"), stage.group()
    missing = f"{topic}-missing"
    stage.ask("x", fetch(group, {topic: [0, 9], missing: [0]}), 0)
    stage.ask("x", commit(group, [(topic, 0, 5), (topic, 9, 5), (other, 1, 6), (missing, 0, 7)]), 0)
    stage.ask("x", commit(group, [(topic, 0, 8)], metadata="m" * 4096), 0)
    stage.ask("x", commit(group, [(topic, 0, 9)], metadata="m" * 4097), 0)
    stage.ask("x", commit(group, [(topic, 1, -1)], metadata=None), 0)
    stage.ask("x", commit(group, []), 0)
    stage.ask("x", fetch(group, {topic: [0, 1], other: [0, 1], missing: [0]}), 0)
    stage.ask("x", fetch(group, {}), 0)
    stage.ask("x", fetch(group, {topic: [0]}), 1)
    stage.ask("x", commit(group, [(topic, 0, 100)]), 1)
    stage.ask("x", fetch(group, {topic: [0]}), 0)
    stage.ask("x", fetch(group, {topic: [0]}), 1)
    stage.ask("x", describe(group), DESCRIBE)


@dialogue
def deleted_offsets(stage: Stage) -> None:
    topic, other, group = stage.topic(), stage.topic("u"), stage.group()
    missing = f"{topic}-missing"
    stage.ask("x", delete_offsets("", {topic: [0]}), 0)
    stage.ask("x", delete_offsets(group, {topic: [0]}), 0)
    stage.ask("x", commit(group, [(topic, 0, 10), (topic, 1, 11), (other, 0, 20)]), COMMIT)
    stage.ask("x", delete_offsets(group, {topic: [0, 7], missing: [0]}), 0)
    stage.ask("x", delete_offsets(group, {missing: [0]}), 0)
    stage.ask("x", delete_offsets(group, {}), 0)
    stage.ask("x", fetch_groups({group: None}), FETCH)
    ids, _ = form(stage, group, "a", protocols=[("range", subscription(topic))])
    stage.ask("x", delete_offsets(group, {topic: [1], other: [0, 1]}), 0)
    stage.ask("x", fetch_groups({group: None}), FETCH)
    stage.ask("x", leave(group, (ids["a"], None)), LEAVE)
    stage.ask("x", delete_offsets(group, {topic: [1]}), 0)
    stage.ask("x", describe(group), DESCRIBE)
    connect = stage.group("connect")
    form(stage, connect, "b", protocol_type="connect", protocols=[("default", b"x")])
    stage.ask("x", delete_offsets(connect, {topic: [0]}), 0)
    odd = stage.group("odd")
    form(stage, odd, "c", protocols=[("range", b"\xff\xff\0\0\0\0")])
    stage.ask("x", delete_offsets(odd, {topic: [0]}), 0)


@dialogue
def deleted_groups(stage: Stage) -> None:
    topic, group = stage.topic(), stage.group()
    for version in range(3):
        stage.ask("x", DeleteGroupsRequest(groups_names=[group]), version)
    stage.ask("x", DeleteGroupsRequest(groups_names=[]), DELETE)
    stage.ask("x", commit(stage.group("simple"), [(topic, 0, 1)]), COMMIT)
    ids, generation = form(stage, group, "a")
    stage.ask("a", commit(group, [(topic, 0, 1)], ids["a"], generation), COMMIT)
    names = [group, stage.group("simple"), stage.group("nobody"), group]
    stage.ask("x", DeleteGroupsRequest(groups_names=names), DELETE)
    stage.ask("x", leave(group, (ids["a"], None)), LEAVE)
    stage.ask("x", DeleteGroupsRequest(groups_names=[group]), DELETE)
    stage.ask("x", describe(group, stage.group("simple")), DESCRIBE)
    stage.ask("x", fetch_groups({group: {topic: [0]}, stage.group("simple"): None}), FETCH)
    stage.ask("a", heartbeat(group, ids["a"], generation), HEARTBEAT)
    stage.ask("a", join(group, ids["a"]), JOIN)
    again, generation = form(stage, group, "a")
    stage.ask("a", heartbeat(group, again["a"], generation), HEARTBEAT)
    stage.ask("x", describe(group), DESCRIBE)


@dialogue
def descriptions(stage: Stage) -> None:
    topic, group = stage.topic(), stage.group()
    stage.ask("x", commit(stage.group("simple"), [(topic, 0, 1)]), COMMIT)
    stage.ask("x", commit("", [(topic, 0, 1)]), COMMIT)
    form_static(stage, group, "ab")
    for version in range(6):
        with_operations = version >= 3
        asked = [group, stage.group("nobody"), stage.group("simple"), ""]
        stage.ask("x", describe(*asked, operations=with_operations), version)
    stage.ask("x", describe(), DESCRIBE)


@dialogue
def lists(stage: Stage) -> None:
    topic, group = stage.topic(), stage.group()
    stage.ask("x", commit(stage.group("simple"), [(topic, 0, 1)]), COMMIT)
    form(stage, group, "a")
    form(stage, stage.group("connect"), "b", protocol_type="connect", protocols=[("default", b"x")])
    for version in range(6):
        list_own(stage, "x", ListGroupsRequest(), version)
    for states in (["Stable"], ["stable", "EMPTY"], ["Dead"], ["nonsense"], ["PreparingRebalance"]):
        list_own(stage, "x", ListGroupsRequest(states_filter=states), 4)
        list_own(stage, "x", ListGroupsRequest(states_filter=states), 5)
    for types in (["classic"], ["CLASSIC", "consumer"], ["consumer"], ["nonsense"]):
        list_own(stage, "x", ListGroupsRequest(types_filter=types), 5)


@dialogue
def coordinators(stage: Stage) -> None:
    group = stage.group()
    for version in range(4):
        stage.ask("x", FindCoordinatorRequest(key=group), version)
    stage.ask("x", FindCoordinatorRequest(key=""), 3)
    for version in range(1, 4):
        for key_type in (2, 9, -1):
            stage.ask("x", FindCoordinatorRequest(key=group, key_type=key_type), version)
    for version in (4, 5, 6):
        stage.ask("x", FindCoordinatorRequest(coordinator_keys=[group, stage.group("h")]), version)
        stage.ask("x", FindCoordinatorRequest(coordinator_keys=[]), version)
        stage.ask("x", FindCoordinatorRequest(coordinator_keys=[""]), version)
        for key_type in (2, 9):
            stage.ask("x", FindCoordinatorRequest(coordinator_keys=[group], key_type=key_type), version)


@dialogue
def producer_ids(stage: Stage) -> None:
    # Kafka fetches its first block when it is first asked, and is not ready until it has it.
    stage.connection("x").ask(InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1), 5)
    stage.sleep(1)
    for version in range(6):
        plain = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
        stage.ask("x", plain, version)
        stage.ask("x", InitProducerIdRequest(transactional_id="", transaction_timeout_ms=60_000), version)
    for producer_id, epoch in ((-1, 0), (4000, -1), (4000, 3)):
        stage.ask(
            "x",
            InitProducerIdRequest(
                transactional_id=None, transaction_timeout_ms=1, producer_id=producer_id, producer_epoch=epoch
            ),
            4,
        )


@dialogue
def offsets_of_deleted_topics(stage: Stage) -> None:
    topic, kept, group = stage.topic(), stage.topic("kept"), stage.group()
    stage.ask("x", commit(group, [(topic, 0, 10), (topic, 1, 10), (kept, 0, 20)]), COMMIT)
    stage.ask("x", commit(stage.group("only"), [(topic, 0, 10)]), COMMIT)
    stage.place.delete_topic(topic)
    stage.ask("x", fetch_groups({group: None, stage.group("only"): None}), FETCH)
    stage.ask("x", describe(group, stage.group("only")), DESCRIBE)


@dialogue
def retention_of_its_own(stage: Stage) -> None:
    topic, group = stage.topic(), stage.group()
    stage.ask("x", commit(group, [(topic, 0, 10)], retention_ms=100), 4)
    stage.ask("x", commit(group, [(topic, 1, 11)], retention_ms=1_000_000), 2)
    stage.ask("x", commit(stage.group("only"), [(topic, 0, 12)], retention_ms=100), 3)
    stage.sleep(1.6)
    stage.ask("x", fetch_groups({group: None, stage.group("only"): None}), FETCH)
    stage.ask("x", describe(group, stage.group("only")), DESCRIBE)


# -- recording ---------------------------------------------------------------------------------------------------------


def main(arguments: list[str]) -> None:
    """See the module."""
    host, port = arguments[0].rsplit(":", 1)
    place = Remote(host, int(port))
    place.await_coordinator("anybody")
    recorded = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
    salt = f"-{os.getpid()}"
    for name in arguments[1:] or DIALOGUES:
        stage = Stage(place, name, salt)
        started = time.perf_counter()
        try:
            DIALOGUES[name](stage)
        finally:
            stage.close()
            sys.stderr.write(f"{name}: {len(stage.transcript)} answers, {time.perf_counter() - started:.1f} s\n")
        recorded[name] = stage.transcript
        _write(recorded)


def _write(recorded: dict[str, Any]) -> None:
    lines = [
        f"{json.dumps(name)}: [\n" + ",\n".join(json.dumps(entry) for entry in recorded[name]) + "\n]"
        for name in sorted(recorded)
    ]
    RECORDED.parent.mkdir(exist_ok=True)
    RECORDED.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
