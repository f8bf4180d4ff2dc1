"""Dialogues about membership: requests in order, each with its client."""

from __future__ import annotations

from protocol.errors import ErrorCode
from protocol.messages.groups import JoinGroupRequest, LeaveGroupRequest, SyncGroupRequest
from tests.broker.groups.dialogue_steps import dialogue, form, form_static, new_id
from tests.broker.groups.group_fixture import GroupFixture
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
def life_of_a_member(fixture: GroupFixture) -> None:
    topic = fixture.topic()
    for version in range(10):
        group = fixture.group(f"v{version}")
        ids = fixture.ask("a", join(group), version)
        if ids.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            ids = fixture.ask("a", join(group, ids.member_id), version)
        member, generation = ids.member_id, ids.generation_id
        lower = min(version, SYNC)
        protocol = {} if lower >= 5 else {"protocol_type": None, "protocol_name": None}
        fixture.ask("a", sync(group, member, generation, {member: b"all"}, **protocol), lower)
        fixture.ask("a", heartbeat(group, member, generation), min(version, HEARTBEAT))
        if version > 0:
            fixture.ask("a", commit(group, [(topic, 0, 7), (topic, 1, 8)], member, generation), version)
            asked = {topic: [0, 1]}
            newest = version > 7
            fixture.ask("a", fetch_groups({group: asked}) if newest else fetch(group, asked), version)
        fixture.ask("a", describe(group), min(version, DESCRIBE))
        if version < 3:
            fixture.ask("a", LeaveGroupRequest(group_id=group, member_id=member), version)
        else:
            fixture.ask("a", leave(group, (member, None)), min(version, LEAVE))
        fixture.ask("a", describe(group), min(version, DESCRIBE))


@dialogue
def refused_to_join(fixture: GroupFixture) -> None:
    group = fixture.group()
    for version in (0, 1, 4, 5, 6, 7, 9):
        fixture.ask("x", join(""), version)
        fixture.ask("x", join(group, "nobody"), version)
        fixture.ask("x", join(group, session_ms=99), version)
        fixture.ask("x", join(group, session_ms=20_001), version)
    fixture.ask("x", join(fixture.group("no-type"), protocol_type=""), JOIN)
    fixture.ask("x", join(fixture.group("no-protocols"), protocols=[]), JOIN)
    ids, _ = form(fixture, group, "a")
    fixture.ask("x", join(group, "nobody"), JOIN)
    fixture.ask("x", join(group, "nobody", instance="nobody"), JOIN)
    fixture.ask("x", join(group, ids["a"], instance="nobody"), JOIN)
    fixture.ask("x", join(group, protocol_type="connect"), JOIN)
    fixture.ask("x", join(group, protocols=[("other", b"")]), JOIN)
    fixture.ask("x", join(group, protocols=[]), JOIN)
    fixture.ask("x", join(group, ids["a"], protocol_type="connect"), JOIN)
    fixture.ask("x", join(group, ids["a"], protocols=[("other", b"")]), 5)
    fixture.ask("x", join(group, instance="", session_ms=1), JOIN)
    fixture.ask("a", heartbeat(group, ids["a"], 1), HEARTBEAT)


@dialogue
def refused_to_sync(fixture: GroupFixture) -> None:
    group = fixture.group()
    for version in range(6):
        protocol = {} if version >= 5 else {"protocol_type": None, "protocol_name": None}
        fixture.ask("x", sync("", "nobody", 1, **protocol), version)
        fixture.ask("x", sync(group, "nobody", 1, **protocol), version)
    ids, generation = form(fixture, group, "ab")
    a = ids["a"]
    fixture.ask("x", sync(group, "nobody", generation), SYNC)
    fixture.ask("x", sync(group, a, generation + 1), SYNC)
    fixture.ask("x", sync(group, a, generation - 1), SYNC)
    fixture.ask("x", sync(group, a, generation, protocol_name="other"), SYNC)
    fixture.ask("x", sync(group, a, generation, protocol_type="other"), SYNC)
    fixture.ask("x", sync(group, a, generation, protocol_name=None), SYNC)
    fixture.ask("x", sync(group, a, generation, protocol_type=None), SYNC)
    fixture.ask("x", sync(group, a, generation, instance="nobody"), SYNC)
    fixture.ask("a", sync(group, a, generation, {a: b"changed"}), SYNC)
    fixture.ask("b", sync(group, ids["b"], generation), SYNC)
    fixture.send("a", join(group, a), JOIN)
    fixture.sleep(0.1)
    fixture.ask("b", sync(group, ids["b"], generation), SYNC)
    fixture.send("b", join(group, ids["b"]), JOIN)
    for who in "ab":
        fixture.receive(who, JoinGroupRequest, JOIN)
    fixture.send("b", sync(group, ids["b"], generation + 1), SYNC)
    fixture.sleep(0.1)
    fixture.send("a", sync(group, a, generation + 1, {a: b"only a", "stranger": b"nothing"}), SYNC)
    for who in "ab":
        fixture.receive(who, SyncGroupRequest, SYNC)


@dialogue
def heartbeats(fixture: GroupFixture) -> None:
    group = fixture.group()
    for version in range(5):
        fixture.ask("x", heartbeat("", "nobody", 1), version)
        fixture.ask("x", heartbeat(group, "nobody", 1), version)
    ids, generation = form(fixture, group, "ab")
    a, b = ids["a"], ids["b"]
    fixture.ask("a", heartbeat(group, a, generation), HEARTBEAT)
    fixture.ask("a", heartbeat(group, a, generation + 1), HEARTBEAT)
    fixture.ask("a", heartbeat(group, "nobody", generation), HEARTBEAT)
    fixture.ask("a", heartbeat(group, a, generation, "nobody"), HEARTBEAT)
    fixture.send("a", join(group, a), JOIN)
    fixture.sleep(0.1)
    fixture.ask("b", heartbeat(group, b, generation), HEARTBEAT)
    fixture.ask("x", describe(group), DESCRIBE)
    fixture.ask("b", join(group, b), JOIN)
    fixture.receive("a", JoinGroupRequest, JOIN)
    fixture.ask("b", heartbeat(group, b, generation), HEARTBEAT)
    fixture.ask("b", heartbeat(group, b, generation + 1), HEARTBEAT)
    fixture.ask("x", describe(group), DESCRIBE)
    fixture.ask("x", leave(group, (a, None), (b, None)), LEAVE)
    fixture.ask("b", heartbeat(group, b, generation + 1), HEARTBEAT)
    fixture.ask("x", describe(group), DESCRIBE)


@dialogue
def rebalances(fixture: GroupFixture) -> None:
    group = fixture.group()
    ids, generation = form(fixture, group, "ab")
    a, b = ids["a"], ids["b"]
    # A follower with unchanged metadata gets the current generation; a leader starts a new one.
    fixture.ask("b", join(group, b), JOIN)
    fixture.send("a", join(group, a), JOIN)
    fixture.sleep(0.1)
    fixture.ask("b", join(group, b), JOIN)
    fixture.receive("a", JoinGroupRequest, JOIN)
    # A repeated JoinGroup before the assignment: each member gets the same answer again.
    fixture.ask("a", join(group, a), JOIN)
    fixture.ask("b", join(group, b), 6)
    # Changed metadata starts a new rebalance, and aborts pending SyncGroups.
    fixture.send("a", sync(group, a, generation + 1, {a: b"1", b: b"2"}), SYNC)
    fixture.receive("a", SyncGroupRequest, SYNC)
    fixture.send("b", join(group, b, protocols=[("range", subscription("t", "u"))]), JOIN)
    fixture.sleep(0.1)
    fixture.ask("a", heartbeat(group, a, generation + 1), HEARTBEAT)
    fixture.ask("a", join(group, a), JOIN)
    fixture.receive("b", JoinGroupRequest, JOIN)
    fixture.send("b", sync(group, b, generation + 2), SYNC)
    fixture.sleep(0.1)
    third = new_id(fixture, "c", group)
    fixture.send("c", join(group, third), JOIN)
    fixture.receive("b", SyncGroupRequest, SYNC)
    fixture.send("b", join(group, b), JOIN)
    fixture.ask("a", join(group, a), JOIN)
    for who in "bc":
        fixture.receive(who, JoinGroupRequest, JOIN)
    fixture.ask("x", describe(group), DESCRIBE)
    fixture.ask("a", sync(group, a, generation + 3, {third: b"c", a: b"a", b: b"b"}), SYNC)
    fixture.ask("b", sync(group, b, generation + 3), SYNC)
    fixture.ask("c", sync(group, third, generation + 3), SYNC)
    fixture.ask("x", describe(group), DESCRIBE)
    # The leader leaves; the remaining member is asked to rejoin.
    fixture.ask("a", leave(group, (third, None), (a, None)), LEAVE)
    fixture.ask("b", heartbeat(group, b, generation + 3), HEARTBEAT)
    fixture.ask("b", join(group, b), JOIN)


@dialogue
def silent_members(fixture: GroupFixture) -> None:
    group = fixture.group("session")
    ids, generation = form(fixture, group, "ab", session_ms=1000)
    for _ in range(4):
        fixture.sleep(0.4)
        fixture.ask("a", heartbeat(group, ids["a"], generation), HEARTBEAT)
    fixture.ask("b", heartbeat(group, ids["b"], generation), HEARTBEAT)
    fixture.ask("a", join(group, ids["a"], session_ms=1000), JOIN)
    # A member that does not rejoin in time is removed, even if it still sends heartbeats.
    group = fixture.group("rebalance")
    ids, generation = form(fixture, group, "ab", rebalance_ms=1000)
    fixture.send("a", join(group, ids["a"], rebalance_ms=1000), JOIN)
    fixture.sleep(0.5)
    fixture.ask("b", heartbeat(group, ids["b"], generation), HEARTBEAT)
    fixture.receive("a", JoinGroupRequest, JOIN)
    fixture.ask("b", heartbeat(group, ids["b"], generation), HEARTBEAT)
    fixture.ask("b", join(group, ids["b"]), JOIN)
    # A member that never requests its assignment is removed too (KAFKA-9752).
    group = fixture.group("sync")
    ids, generation = form(fixture, group, "ab", rebalance_ms=1000)
    fixture.send("a", join(group, ids["a"], rebalance_ms=1000), JOIN)
    fixture.sleep(0.1)
    fixture.ask("b", join(group, ids["b"], rebalance_ms=1000), JOIN)
    fixture.receive("a", JoinGroupRequest, JOIN)
    fixture.ask("a", sync(group, ids["a"], generation + 1, {}), SYNC)
    fixture.ask("b", heartbeat(group, ids["b"], generation + 1), HEARTBEAT)
    fixture.sleep(1.3)
    fixture.ask("b", heartbeat(group, ids["b"], generation + 1), HEARTBEAT)
    fixture.ask("a", heartbeat(group, ids["a"], generation + 1), HEARTBEAT)
    # Unused member ids expire, and the group stops waiting for them.
    group = fixture.group("pending")
    lost = new_id(fixture, "x", group, session_ms=1000)
    member = new_id(fixture, "a", group)
    fixture.ask("a", join(group, member), JOIN)
    fixture.ask("x", describe(group), DESCRIBE)
    fixture.sleep(1)
    fixture.ask("x", join(group, lost), JOIN)
    other = new_id(fixture, "x", group)
    fixture.send("a", join(group, member, protocols=[("range", b"")]), JOIN)
    fixture.sleep(0.1)
    fixture.ask("x", leave(group, (other, None)), LEAVE)
    fixture.receive("a", JoinGroupRequest, JOIN)


@dialogue
def static_members(fixture: GroupFixture) -> None:
    for version in (5, 8, 9):
        group = fixture.group(f"v{version}")
        ids, generation = form_static(fixture, group, "ab")
        # A follower, then the leader, rejoin without their member ids: the generation stays.
        follower = fixture.ask("b", join(group, instance="b"), version).member_id
        fixture.ask("b", heartbeat(group, ids["b"], generation, "b"), HEARTBEAT)
        fixture.ask("b", heartbeat(group, ids["b"], generation), HEARTBEAT)
        fixture.ask("b", heartbeat(group, follower, generation, "b"), HEARTBEAT)
        fixture.ask("b", sync(group, follower, generation, instance="b"), SYNC)
        leader = fixture.ask("a", join(group, instance="a"), version).member_id
        fixture.ask("a", sync(group, leader, generation, instance="a"), SYNC)
        fixture.ask("a", heartbeat(group, leader, generation, "a"), HEARTBEAT)
        fixture.ask("x", describe(group), DESCRIBE)
        fixture.ask("x", join(group, ids["a"], instance="a"), version)
        fixture.ask("x", sync(group, ids["a"], generation, instance="a"), SYNC)
        fixture.ask("x", commit(group, [], ids["a"], generation, instance="a"), COMMIT)
        fixture.ask("x", leave(group, (ids["a"], "a"), (leader, "b"), (leader, None), ("", "a"), ("", "b")), LEAVE)
        fixture.ask("x", describe(group), DESCRIBE)


@dialogue
def static_members_that_change(fixture: GroupFixture) -> None:
    group = fixture.group("protocols")
    both = [("range", subscription("t")), ("sticky", subscription("t"))]
    ids, generation = form_static(fixture, group, "ab", protocols=both)
    fixture.send("b", join(group, instance="b", protocols=both[1:]), JOIN)
    fixture.sleep(0.1)
    fixture.ask("a", heartbeat(group, ids["a"], generation, "a"), HEARTBEAT)
    fixture.ask("a", join(group, ids["a"], instance="a", protocols=both), JOIN)
    second = fixture.receive("b", JoinGroupRequest, JOIN).member_id
    # If a member is replaced before the assignment, the rebalance restarts.
    fixture.send("b", sync(group, second, generation + 1, instance="b", protocol_name="sticky"), SYNC)
    fixture.sleep(0.1)
    fixture.send("c", join(group, instance="b", protocols=both), JOIN)
    fixture.receive("b", SyncGroupRequest, SYNC)
    fixture.ask("a", join(group, ids["a"], instance="a", protocols=both), JOIN)
    third = fixture.receive("c", JoinGroupRequest, JOIN).member_id
    # While members join, the old holder of the instance id is fenced.
    fixture.send("a", join(group, ids["a"], instance="a", protocols=both[:1]), JOIN)
    fixture.sleep(0.1)
    fixture.send("c", join(group, instance="b", protocols=both), JOIN)
    fixture.receive("c", JoinGroupRequest, JOIN)
    fixture.receive("a", JoinGroupRequest, JOIN)
    fixture.ask("x", heartbeat(group, third, generation + 3, "b"), HEARTBEAT)
    # The group waits for an absent static member until its session expires.
    group = fixture.group("absent")
    ids, generation = form_static(fixture, group, "ab", session_ms=1500, rebalance_ms=500)
    fixture.ask("a", join(group, ids["a"], instance="a", session_ms=1500, rebalance_ms=500), JOIN)
    fixture.ask("a", sync(group, ids["a"], generation + 1, {ids["b"]: b"still"}, instance="a"), SYNC)
    fixture.ask("x", describe(group), DESCRIBE)


@dialogue
def too_many_members(fixture: GroupFixture) -> None:
    group = fixture.group()
    ids, generation = form(fixture, group, "abcd")
    fixture.ask("e", join(group), JOIN)
    fixture.ask("e", join(group), 3)
    fixture.ask("e", join(group, instance="e"), JOIN)
    fixture.ask("a", heartbeat(group, ids["a"], generation), HEARTBEAT)
    group = fixture.group("gathering")
    pending = {who: new_id(fixture, who, group) for who in "abcde"}
    for who in "abcd":
        fixture.send(who, join(group, pending[who]), JOIN)
        fixture.sleep(0.02)
    fixture.ask("e", join(group, pending["e"]), JOIN)
    for who in "abcd":
        fixture.receive(who, JoinGroupRequest, JOIN)


@dialogue
def votes(fixture: GroupFixture) -> None:
    group = fixture.group()
    preferences = {"a": ["x", "y", "z"], "b": ["y", "z", "x"], "c": ["z", "y"]}
    ids = {who: new_id(fixture, who, group) for who in preferences}
    for who, names in preferences.items():
        protocols = [(name, f"{who} {name}".encode()) for name in names]
        fixture.send(who, join(group, ids[who], protocols=protocols, protocol_type="mine"), JOIN)
        fixture.sleep(0.03)
    for who in preferences:
        fixture.receive(who, JoinGroupRequest, JOIN)


@dialogue
def first_generation_waits_for_company(fixture: GroupFixture) -> None:
    group = fixture.group()
    ids = {who: new_id(fixture, who, group) for who in "abc"}
    fixture.send("a", join(group, ids["a"]), JOIN)
    fixture.sleep(0.2)
    fixture.send("b", join(group, ids["b"]), JOIN)
    fixture.sleep(0.2)
    fixture.send("c", join(group, ids["c"]), JOIN)
    for who in "abc":
        fixture.receive(who, JoinGroupRequest, JOIN)
    # The rebalance timeout ends the join phase.
    group = fixture.group("short")
    ids = {who: new_id(fixture, who, group) for who in "abc"}
    fixture.send("a", join(group, ids["a"], rebalance_ms=400), JOIN)
    fixture.sleep(0.2)
    fixture.send("b", join(group, ids["b"], rebalance_ms=400), JOIN)
    fixture.sleep(0.4)
    for who in "ab":
        fixture.receive(who, JoinGroupRequest, JOIN)


@dialogue
def leaving(fixture: GroupFixture) -> None:
    group = fixture.group()
    for version in range(6):
        if version < 3:
            fixture.ask("x", LeaveGroupRequest(group_id="", member_id="nobody"), version)
            fixture.ask("x", LeaveGroupRequest(group_id=group, member_id="nobody"), version)
        else:
            fixture.ask("x", leave("", ("nobody", None)), version)
            fixture.ask("x", leave(group, ("nobody", None), ("", "nobody")), version)
    ids, generation = form(fixture, group, "ab")
    fixture.ask("x", LeaveGroupRequest(group_id=group, member_id="nobody"), 2)
    fixture.ask("x", LeaveGroupRequest(group_id=group, member_id=""), 2)
    fixture.ask("x", leave(group), LEAVE)
    fixture.ask("x", leave(group, ("nobody", None), ("", None), ("", "nobody"), (ids["a"], "nobody")), LEAVE)
    fixture.ask("a", heartbeat(group, ids["a"], generation), HEARTBEAT)
    # A member with a pending JoinGroup leaves.
    fixture.send("b", join(group, ids["b"], protocols=[("range", b"")]), JOIN)
    fixture.sleep(0.1)
    fixture.ask("x", leave(group, (ids["b"], None)), LEAVE)
    fixture.receive("b", JoinGroupRequest, JOIN)
    fixture.ask("x", LeaveGroupRequest(group_id=group, member_id=ids["a"]), 0)
    fixture.ask("x", describe(group), DESCRIBE)
