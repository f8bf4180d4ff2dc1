"""The classic group protocol: joining, syncing, leaving, static members, and administrators' views of groups."""

from __future__ import annotations

from typing import Any

from protocol.errors import ErrorCode
from protocol.messages.group_admin import DeleteGroupsRequest, DescribeGroupsRequest, ListGroupsRequest
from protocol.messages.groups import HeartbeatRequest, JoinGroupRequest, LeaveGroupRequest, SyncGroupRequest
from tests.kit.wire_client import WireClient
from tests.parity.subject import Subject, scenario

Protocols = tuple[tuple[str, bytes], ...]


def subscription(topic: str) -> bytes:
    """Version 0 of a consumer's subscription: one topic, no user data."""
    name = topic.encode()
    return b"\0\0\0\0\0\1" + len(name).to_bytes(2, "big") + name + b"\xff\xff\xff\xff"


RANGE: Protocols = (("range", subscription("x")),)


def join_request(
    group: str,
    member_id: str = "",
    *,
    instance: str | None = None,
    protocol_type: str = "consumer",
    protocols: Protocols = RANGE,
    session_timeout_ms: int = 30_000,
    rebalance_timeout_ms: int = 30_000,
) -> JoinGroupRequest:
    """A member's JoinGroup."""
    return JoinGroupRequest(
        group_id=group,
        session_timeout_ms=session_timeout_ms,
        rebalance_timeout_ms=rebalance_timeout_ms,
        member_id=member_id,
        group_instance_id=instance,
        protocol_type=protocol_type,
        protocols=[JoinGroupRequest.JoinGroupRequestProtocol(name=name, metadata=data) for name, data in protocols],
    )


def join(b: Subject, group: str, member_id: str = "", *, version: int = 9, **options: Any) -> Any:
    """Join, and note the answer."""
    return b.ask(join_request(group, member_id, **options), version)


def sync_request(
    group: str, generation: int, member_id: str, assignments: dict[str, bytes] | None = None, **options: Any
) -> SyncGroupRequest:
    """A SyncGroup; a leader includes the assignments."""
    return SyncGroupRequest(
        **{
            "group_id": group,
            "generation_id": generation,
            "member_id": member_id,
            "protocol_type": "consumer",
            "protocol_name": "range",
            "assignments": [
                SyncGroupRequest.SyncGroupRequestAssignment(member_id=member, assignment=data)
                for member, data in (assignments or {}).items()
            ],
            **options,
        }
    )


def sync(b: Subject, group: str, generation: int, member_id: str, *args: Any, version: int = 5, **options: Any) -> Any:
    """Sync, and note the answer."""
    return b.ask(sync_request(group, generation, member_id, *args, **options), version)


def heartbeat(b: Subject, group: str, generation: int, member_id: str, *, version: int = 4, **options: Any) -> Any:
    """Send a heartbeat, and note the answer."""
    return b.ask(HeartbeatRequest(group_id=group, generation_id=generation, member_id=member_id, **options), version)


def leave(b: Subject, group: str, *members: tuple[str, str | None], version: int = 5) -> None:
    """Remove members, by id or instance id."""
    identities = [
        LeaveGroupRequest.MemberIdentity(member_id=member, group_instance_id=instance) for member, instance in members
    ]
    if version < 3:
        b.ask(LeaveGroupRequest(group_id=group, member_id=members[0][0]), version)
    else:
        b.ask(LeaveGroupRequest(group_id=group, members=identities), version)


def describe(b: Subject, *groups: str, version: int = 5, **options: Any) -> None:
    """DescribeGroups."""
    b.ask(DescribeGroupsRequest(groups=list(groups), **options), version)


def member(b: Subject, group: str, connection: WireClient | None = None, **options: Any) -> str:
    """A new member id; not noted."""
    request = join_request(group, **options)
    response = (connection or b.connection).ask(request, 9)
    assert response.error_code == ErrorCode.MEMBER_ID_REQUIRED, response
    return str(response.member_id)


def stable_group(b: Subject, suffix: str = "g", **options: Any) -> tuple[str, str, int]:
    """A Stable group of one member: (group, member id, generation)."""
    group = b.coordinator(b.name(suffix))
    member_id = member(b, group, **options)
    joined = b.quietly(join_request(group, member_id, **options), 9)
    assert joined.error_code == ErrorCode.NONE, joined
    synced = b.quietly(sync_request(group, joined.generation_id, member_id, {member_id: b"assigned"}), 4)
    assert synced.error_code == ErrorCode.NONE, synced
    return group, member_id, joined.generation_id


# -- joining -----------------------------------------------------------------------------------------------------------


@scenario
def one_member_joins(b: Subject) -> None:
    group = b.coordinator(b.name("g"))
    required = join(b, group)
    joined = join(b, group, required.member_id)
    sync(b, group, joined.generation_id, joined.member_id, {joined.member_id: b"mine"})
    heartbeat(b, group, joined.generation_id, joined.member_id)
    describe(b, group)
    leave(b, group, (joined.member_id, None))
    describe(b, group)


@scenario
def join_in_every_version(b: Subject) -> None:
    for version in range(10):
        group = b.coordinator(b.name(f"g{version}"))
        joined = join(b, group, version=version)
        if joined.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            join(b, group, joined.member_id, version=version)


@scenario
def two_members_rebalance(b: Subject) -> None:
    group, first, generation = stable_group(b)
    with b.another() as other:
        second = member(b, group, other)
        other.send(join_request(group, second), 9)
        b.until(lambda: b.quietly(HeartbeatRequest(
            group_id=group, generation_id=generation, member_id=first), 4).error_code != ErrorCode.NONE)  # fmt: skip
        heartbeat(b, group, generation, first)
        leader = join(b, group, first)
        follower = other.receive(JoinGroupRequest, 9)
        b.note("follower joined", follower)
        other.send(sync_request(group, leader.generation_id, second), 5)
        sync(b, group, leader.generation_id, first, {first: b"one", second: b"two"})
        b.note("follower synced", other.receive(SyncGroupRequest, 5))
        describe(b, group)
        leave(b, group, (second, None))
        heartbeat(b, group, leader.generation_id, first)


@scenario
def join_with_an_unknown_member_id(b: Subject) -> None:
    group = b.coordinator(b.name("g"))
    join(b, group, "nobody-0b8b0d0e-1111-2222-3333-444444444444")
    stable, _, _ = stable_group(b, "stable")
    join(b, stable, "nobody-0b8b0d0e-1111-2222-3333-444444444444")


@scenario
def join_with_bad_session_timeouts(b: Subject) -> None:
    group = b.coordinator(b.name("g"))
    for timeout in (5_999, 6_000, 1_800_000, 1_800_001, 0, -1):
        join(b, group, session_timeout_ms=timeout)


@scenario
def join_an_empty_group_id(b: Subject) -> None:
    b.coordinator(b.name("g"))
    join(b, "")
    join(b, "", version=3)


@scenario
def join_without_protocols(b: Subject) -> None:
    group = b.coordinator(b.name("g"))
    join(b, group, protocols=())
    join(b, group, protocol_type="")
    join(b, group, version=3, protocols=())


@scenario
def join_with_another_protocol_type(b: Subject) -> None:
    group, _, _ = stable_group(b)
    join(b, group, protocol_type="connect")
    join(b, group, protocols=(("other", subscription("x")),))


@scenario
def join_again_with_the_same_metadata(b: Subject) -> None:
    group, member_id, generation = stable_group(b)
    b.note("generation before", generation)
    join(b, group, member_id)


@scenario
def join_again_with_other_metadata(b: Subject) -> None:
    group, member_id, _ = stable_group(b)
    join(b, group, member_id, protocols=(("range", subscription("y")),))
    describe(b, group)


@scenario
def follower_joins_again_with_the_same_metadata(b: Subject) -> None:
    group, _leader, follower, generation, other = pair(b)
    with other:
        b.note("generation before", generation)
        other.send(join_request(group, follower), 9)
        b.note("answer", other.receive(JoinGroupRequest, 9))


def pair(b: Subject) -> tuple[str, str, str, int, WireClient]:
    """A Stable group of two: (group, leader, follower, generation, the follower's connection)."""
    group, leader, generation = stable_group(b)
    other = b.connect()
    follower = member(b, group, other)
    other.send(join_request(group, follower), 9)
    b.until(lambda: b.quietly(HeartbeatRequest(
        group_id=group, generation_id=generation, member_id=leader), 4).error_code != ErrorCode.NONE)  # fmt: skip
    joined = b.quietly(join_request(group, leader), 9)
    other.receive(JoinGroupRequest, 9)
    other.send(sync_request(group, joined.generation_id, follower), 5)
    b.quietly(sync_request(group, joined.generation_id, leader, {leader: b"one", follower: b"two"}), 5)
    other.receive(SyncGroupRequest, 5)
    return group, leader, follower, joined.generation_id, other


@scenario
def protocol_is_chosen_by_vote(b: Subject) -> None:
    group = b.coordinator(b.name("g"))
    both: Protocols = (("range", subscription("x")), ("roundrobin", subscription("y")))
    # If two had one vote each, Kafka would take the first one in its hash map.
    reverse: Protocols = (("roundrobin", subscription("y")), ("sticky", subscription("x")))
    first = member(b, group, protocols=both)
    joined = join(b, group, first, protocols=both)
    sync(b, group, joined.generation_id, first, {first: b"x"})
    with b.another() as other:
        second = member(b, group, other, protocols=reverse)
        other.send(join_request(group, second, protocols=reverse), 9)
        b.until(lambda: b.quietly(HeartbeatRequest(
            group_id=group, generation_id=joined.generation_id, member_id=first), 4).error_code != 0)  # fmt: skip
        join(b, group, first, protocols=both)
        b.note("second", other.receive(JoinGroupRequest, 9))


@scenario
def other_kinds_of_groups(b: Subject) -> None:
    group, _, _ = stable_group(b, protocol_type="connect", protocols=(("default", b"\x00\x01"),))
    describe(b, group)


# -- syncing -----------------------------------------------------------------------------------------------------------


@scenario
def sync_in_every_version(b: Subject) -> None:
    for version in range(6):
        group = b.coordinator(b.name(f"g{version}"))
        member_id = member(b, group)
        joined = b.quietly(join_request(group, member_id), 9)
        sync(b, group, joined.generation_id, member_id, {member_id: b"mine"}, version=version,
             **({} if version == 5 else {"protocol_type": None, "protocol_name": None}))  # fmt: skip


@scenario
def sync_again_when_stable(b: Subject) -> None:
    group, member_id, generation = stable_group(b)
    sync(b, group, generation, member_id)
    sync(b, group, generation, member_id, {member_id: b"changed"})


@scenario
def sync_refusals(b: Subject) -> None:
    group, member_id, generation = stable_group(b)
    sync(b, group, generation + 1, member_id)
    sync(b, group, generation - 1, member_id)
    sync(b, group, generation, "nobody")
    sync(b, b.name("none"), generation, member_id)
    sync(b, "", generation, member_id)
    sync(b, group, generation, member_id, protocol_type="connect")
    sync(b, group, generation, member_id, protocol_name="other")
    sync(b, group, generation, member_id, protocol_type=None)


@scenario
def sync_without_an_assignment_for_oneself(b: Subject) -> None:
    group = b.coordinator(b.name("g"))
    member_id = member(b, group)
    joined = b.quietly(join_request(group, member_id), 9)
    sync(b, group, joined.generation_id, member_id)
    describe(b, group)


@scenario
def sync_while_others_join(b: Subject) -> None:
    group, first, generation = stable_group(b)
    with b.another() as other:
        second = member(b, group, other)
        other.send(join_request(group, second), 9)
        b.until(lambda: b.quietly(HeartbeatRequest(
            group_id=group, generation_id=generation, member_id=first), 4).error_code != 0)  # fmt: skip
        sync(b, group, generation, first)
        describe(b, group)
        leave(b, group, (first, None))
        b.note("second joined", other.receive(JoinGroupRequest, 9))


# -- heartbeats and leaving --------------------------------------------------------------------------------------------


@scenario
def heartbeats_in_every_version(b: Subject) -> None:
    group, member_id, generation = stable_group(b)
    for version in range(5):
        heartbeat(b, group, generation, member_id, version=version)


@scenario
def heartbeat_refusals(b: Subject) -> None:
    group, member_id, generation = stable_group(b)
    heartbeat(b, group, generation + 1, member_id)
    heartbeat(b, group, -1, member_id)
    heartbeat(b, group, generation, "nobody")
    heartbeat(b, b.name("none"), generation, member_id)
    heartbeat(b, "", generation, member_id)
    heartbeat(b, group, generation, member_id, group_instance_id="nobody")


@scenario
def leave_in_every_version(b: Subject) -> None:
    for version in range(6):
        group, member_id, _ = stable_group(b, f"g{version}")
        leave(b, group, (member_id, None), version=version)


@scenario
def leave_refusals(b: Subject) -> None:
    group, _, _ = stable_group(b)
    leave(b, group, ("nobody", None))
    leave(b, group, ("nobody", None), version=2)
    leave(b, group, ("", "nobody"))
    leave(b, b.name("none"), ("nobody", None))
    leave(b, b.name("none"), ("nobody", None), version=1)
    leave(b, "", ("nobody", None))


@scenario
def leave_several_at_once(b: Subject) -> None:
    group, leader, follower, _, other = pair(b)
    with other:
        leave(b, group, (leader, None), ("nobody", None), (follower, None))
        describe(b, group)


@scenario
def leader_leaves(b: Subject) -> None:
    group, leader, follower, generation, other = pair(b)
    with other:
        leave(b, group, (leader, None))
        heartbeat(b, group, generation, follower)
        other.send(join_request(group, follower), 9)
        b.note("follower joined", other.receive(JoinGroupRequest, 9))


@scenario
def a_session_times_out(b: Subject) -> None:
    # 6 seconds is the shortest session; the other scenarios do not wait for its end.
    group, member_id, generation = stable_group(b, session_timeout_ms=6_000)
    b.until(lambda: b.quietly(DescribeGroupsRequest(groups=[group]), 5).groups[0].group_state == "Empty")
    heartbeat(b, group, generation, member_id)
    describe(b, group)


# -- static members (KIP-345) ------------------------------------------------------------------------------------------


def static_group(b: Subject, instance: str = "one") -> tuple[str, str, int]:
    """A Stable group of one static member."""
    group = b.coordinator(b.name("g"))
    joined = b.quietly(join_request(group, instance=instance), 9)
    assert joined.error_code == ErrorCode.NONE, joined
    b.quietly(
        sync_request(
            group, joined.generation_id, joined.member_id, {joined.member_id: b"mine"}, group_instance_id=instance
        ),
        5,
    )
    return group, joined.member_id, joined.generation_id


@scenario
def static_member_joins(b: Subject) -> None:
    group = b.coordinator(b.name("g"))
    joined = join(b, group, instance="one")
    sync(b, group, joined.generation_id, joined.member_id, {joined.member_id: b"x"}, group_instance_id="one")
    describe(b, group)


@scenario
def static_member_comes_back(b: Subject) -> None:
    group, old, generation = static_group(b)
    joined = join(b, group, instance="one")
    heartbeat(b, group, joined.generation_id, joined.member_id, group_instance_id="one")
    sync(b, group, joined.generation_id, joined.member_id, group_instance_id="one")
    heartbeat(b, group, generation, old, group_instance_id="one")
    sync(b, group, generation, old, group_instance_id="one")
    join(b, group, old, instance="one")


@scenario
def static_member_comes_back_with_other_metadata(b: Subject) -> None:
    group, _, _ = static_group(b)
    join(b, group, instance="one", protocols=(("range", subscription("y")),))
    describe(b, group)


@scenario
def static_member_comes_back_in_version_8(b: Subject) -> None:
    group, _, _ = static_group(b)
    join(b, group, instance="one", version=8)


@scenario
def static_member_leaves(b: Subject) -> None:
    group, member_id, _ = static_group(b)
    leave(b, group, ("nobody", "one"))
    leave(b, group, ("", "one"))
    leave(b, group, (member_id, "one"))
    describe(b, group)


@scenario
def static_members_in_old_versions(b: Subject) -> None:
    group, member_id, generation = static_group(b)
    describe(b, group, version=3)
    heartbeat(b, group, generation, member_id, version=2)


@scenario
def bad_instance_ids(b: Subject) -> None:
    for number, instance in enumerate(("", ".", "a/b", "x" * 250)):
        join(b, b.coordinator(b.name(f"g{number}")), instance=instance)


# -- administrators ----------------------------------------------------------------------------------------------------


@scenario
def describe_in_every_version(b: Subject) -> None:
    group, _, _ = stable_group(b)
    for version in range(6):
        describe(b, group, version=version)


@scenario
def describe_strange_groups(b: Subject) -> None:
    b.coordinator(b.name("g"))
    describe(b, b.name("none"))
    describe(b, "")
    describe(b)


@scenario
def describe_with_operations(b: Subject) -> None:
    group, _, _ = stable_group(b)
    describe(b, group, b.name("none"), include_authorized_operations=True)


@scenario
def describe_while_joining(b: Subject) -> None:
    group = b.coordinator(b.name("g"))
    member_id = member(b, group)
    describe(b, group)
    b.quietly(join_request(group, member_id), 9)
    describe(b, group)


def list_groups(b: Subject, group: str, *, version: int = 5, **options: Any) -> None:
    """ListGroups, with this scenario's groups only."""
    response = b.quietly(ListGroupsRequest(**options), version)
    response.groups = [each for each in response.groups if each.group_id == group]
    b.note(f"ListGroups v{version}", response)


@scenario
def list_in_every_version(b: Subject) -> None:
    group, _, _ = stable_group(b)
    for version in range(6):
        list_groups(b, group, version=version)


@scenario
def list_with_filters(b: Subject) -> None:
    group, _, _ = stable_group(b)
    for states in (["Stable"], ["stable"], ["STABLE"], ["Empty"], ["Empty", "Stable"], ["NoSuchState"]):
        list_groups(b, group, states_filter=states)
    for types in (["classic"], ["Classic"], ["consumer"], ["nosuchtype"], ["classic", "consumer"]):
        list_groups(b, group, types_filter=types)


@scenario
def delete_groups(b: Subject) -> None:
    group, member_id, _ = stable_group(b)
    b.ask(DeleteGroupsRequest(groups_names=[group]), 2)
    leave(b, group, (member_id, None))
    for version in range(3):
        b.ask(DeleteGroupsRequest(groups_names=[group, b.name("none"), ""]), version)
    describe(b, group)
    list_groups(b, group)


@scenario
def delete_a_group_twice_in_one_request(b: Subject) -> None:
    group, member_id, _ = stable_group(b)
    leave(b, group, (member_id, None))
    b.ask(DeleteGroupsRequest(groups_names=[group, group]), 2)
