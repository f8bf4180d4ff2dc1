"""Dialogues about membership: requests in order, each with its client."""

from __future__ import annotations

from protocol.errors import ErrorCode
from protocol.messages import JoinGroupRequest, LeaveGroupRequest, SyncGroupRequest
from tests.broker.groups.dialogue_steps import dialogue, form, form_static, new_id
from tests.broker.groups.group_stage import Stage
from tests.kit.group_requests import (
    COMMIT,
    DESCRIBE,
    HEARTBEAT,
    JOIN,
    LEAVE,
    SYNC,
    commit,
    describe,
    fetch,
    fetch_groups,
    heartbeat,
    join,
    leave,
    subscription,
    sync,
)


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
