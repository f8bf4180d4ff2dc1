"""Dialogues about offsets and by administrators: requests in order, each with its client."""

from __future__ import annotations

from protocol.messages.coordinators import FindCoordinatorRequest
from protocol.messages.group_admin import DeleteGroupsRequest, ListGroupsRequest
from protocol.messages.groups import JoinGroupRequest
from protocol.messages.producer_ids import InitProducerIdRequest
from tests.broker.groups.dialogue_steps import dialogue, form, form_static, list_own
from tests.broker.groups.group_fixture import GroupFixture
from tests.kit.group_requests import (
    COMMIT,
    DELETE,
    DESCRIBE,
    FETCH,
    HEARTBEAT,
    JOIN,
    LEAVE,
    commit,
    delete_offsets,
    describe,
    fetch,
    fetch_groups,
    heartbeat,
    join,
    leave,
    subscription,
)


@dialogue
def refused_commits(fixture: GroupFixture) -> None:
    topic, group = fixture.topic(), fixture.group()
    missing = f"{topic}-missing"
    fixture.ask("x", commit(group, [(topic, 0, 1)], "nobody", 3), COMMIT)
    fixture.ask("x", commit(group, [(topic, 0, 1)], "nobody", -1), COMMIT)
    fixture.ask(
        "x", commit(fixture.group("m"), [(topic, 0, 1), (topic, 2, 1), (topic, -1, 1), (missing, 0, 1)]), COMMIT
    )
    fixture.ask("x", commit(fixture.group("m"), [(missing, 0, 1)]), COMMIT)
    fixture.ask("x", commit(fixture.group("m"), []), COMMIT)
    fixture.ask("x", commit(fixture.group("m"), [(topic, 0, 1)], metadata="m" * 4096), COMMIT)
    fixture.ask("x", commit(fixture.group("m"), [(topic, 0, 2)], metadata="m" * 4097), COMMIT)
    fixture.ask("x", commit(fixture.group("m"), [(topic, 0, 3)], metadata="\u00e9" * 4096), COMMIT)
    fixture.ask("x", commit(fixture.group("m"), [(topic, 0, 4)], metadata="\U0001f600" * 2049), COMMIT)
    fixture.ask("x", commit(fixture.group("m"), [(topic, 1, -1)]), COMMIT)
    fixture.ask("x", commit(fixture.group("m"), [(topic, 1, -2)]), COMMIT)
    fixture.ask("x", fetch_groups({fixture.group("m"): None}), FETCH)
    ids, generation = form(fixture, group, "ab")
    a = ids["a"]
    for version in (1, 2, 5, 6, 9):
        fixture.ask("a", commit(group, [(topic, 0, version)], a, generation), version)
        fixture.ask("a", commit(group, [(topic, 0, 99)], a, generation + 1), version)
        fixture.ask("a", commit(group, [(topic, 0, 99)], "nobody", generation), version)
        fixture.ask("a", commit(group, [(topic, 0, 99)]), version)
        fixture.ask("a", commit(group, [(topic, 0, 99)], a, -1), version)
    fixture.ask("a", commit(group, [(topic, 0, 99)], a, generation, instance="nobody"), COMMIT)
    fixture.send("a", join(group, a), JOIN)
    fixture.sleep(0.1)
    fixture.ask("b", commit(group, [(topic, 1, 50)], ids["b"], generation), COMMIT)
    fixture.ask("b", join(group, ids["b"]), JOIN)
    fixture.receive("a", JoinGroupRequest, JOIN)
    fixture.ask("b", commit(group, [(topic, 1, 51)], ids["b"], generation), COMMIT)
    fixture.ask("b", commit(group, [(topic, 1, 51)], ids["b"], generation + 1), COMMIT)
    fixture.ask("x", commit(group, [(topic, 1, 52)]), COMMIT)
    fixture.ask("x", fetch_groups({group: None}), FETCH)
    fixture.ask("x", leave(group, (a, None), (ids["b"], None)), LEAVE)
    fixture.ask("x", commit(group, [(topic, 1, 53)]), COMMIT)
    fixture.ask("x", commit(group, [(topic, 1, 54)], a, generation + 2), COMMIT)
    fixture.ask("x", commit(group, [(topic, 1, 55)], "anybody", -1), COMMIT)
    fixture.ask("x", fetch_groups({group: None}), FETCH)


@dialogue
def fetched_offsets(fixture: GroupFixture) -> None:
    topic, other, group = fixture.topic(), fixture.topic("u"), fixture.group()
    missing = f"{topic}-missing"
    fixture.ask("x", commit(group, [(topic, 0, 10), (other, 1, 20)], metadata="note", leader_epoch=3), COMMIT)
    fixture.ask("x", commit(group, [(topic, 1, 11)], metadata=None), 3)
    fixture.ask("x", commit("", [(topic, 0, 77)]), COMMIT)
    fixture.ask("x", commit(group, [(other, 0, 12)], timestamp=1000), 1)
    for version in range(1, 8):
        fixture.ask("x", fetch(group, {topic: [0, 1, 2], missing: [0]}), version)
        fixture.ask("x", fetch(fixture.group("nobody"), {topic: [0]}), version)
        fixture.ask("x", fetch(group, {}), version)
        if version >= 2:
            fixture.ask("x", fetch(group, None), version)
            fixture.ask("x", fetch(fixture.group("nobody"), None), version)
    fixture.ask("x", fetch(group, {topic: [0]}, stable=True), 7)
    fixture.ask("x", fetch("", {topic: [0]}), 7)
    for version in (8, 9):
        fixture.ask("x", fetch_groups({group: {topic: [0, 5], missing: [0]}, fixture.group("nobody"): None}), version)
        fixture.ask("x", fetch_groups({group: None, fixture.group("nobody"): {topic: [0]}}, stable=True), version)
        fixture.ask("x", fetch_groups({group: {}}), version)


@dialogue
def deleted_offsets(fixture: GroupFixture) -> None:
    topic, other, group = fixture.topic(), fixture.topic("u"), fixture.group()
    missing = f"{topic}-missing"
    fixture.ask("x", delete_offsets("", {topic: [0]}), 0)
    fixture.ask("x", delete_offsets(group, {topic: [0]}), 0)
    fixture.ask("x", commit(group, [(topic, 0, 10), (topic, 1, 11), (other, 0, 20)]), COMMIT)
    fixture.ask("x", delete_offsets(group, {topic: [0, 7], missing: [0]}), 0)
    fixture.ask("x", delete_offsets(group, {missing: [0]}), 0)
    fixture.ask("x", delete_offsets(group, {}), 0)
    fixture.ask("x", fetch_groups({group: None}), FETCH)
    ids, _ = form(fixture, group, "a", protocols=[("range", subscription(topic))])
    fixture.ask("x", delete_offsets(group, {topic: [1], other: [0, 1]}), 0)
    fixture.ask("x", fetch_groups({group: None}), FETCH)
    fixture.ask("x", leave(group, (ids["a"], None)), LEAVE)
    fixture.ask("x", delete_offsets(group, {topic: [1]}), 0)
    fixture.ask("x", describe(group), DESCRIBE)
    connect = fixture.group("connect")
    form(fixture, connect, "b", protocol_type="connect", protocols=[("default", b"x")])
    fixture.ask("x", delete_offsets(connect, {topic: [0]}), 0)
    odd = fixture.group("odd")
    form(fixture, odd, "c", protocols=[("range", b"\xff\xff\0\0\0\0")])
    fixture.ask("x", delete_offsets(odd, {topic: [0]}), 0)


@dialogue
def deleted_groups(fixture: GroupFixture) -> None:
    topic, group = fixture.topic(), fixture.group()
    for version in range(3):
        fixture.ask("x", DeleteGroupsRequest(groups_names=[group]), version)
    fixture.ask("x", DeleteGroupsRequest(groups_names=[]), DELETE)
    fixture.ask("x", commit(fixture.group("simple"), [(topic, 0, 1)]), COMMIT)
    ids, generation = form(fixture, group, "a")
    fixture.ask("a", commit(group, [(topic, 0, 1)], ids["a"], generation), COMMIT)
    names = [group, fixture.group("simple"), fixture.group("nobody"), group]
    fixture.ask("x", DeleteGroupsRequest(groups_names=names), DELETE)
    fixture.ask("x", leave(group, (ids["a"], None)), LEAVE)
    fixture.ask("x", DeleteGroupsRequest(groups_names=[group]), DELETE)
    fixture.ask("x", describe(group, fixture.group("simple")), DESCRIBE)
    fixture.ask("x", fetch_groups({group: {topic: [0]}, fixture.group("simple"): None}), FETCH)
    fixture.ask("a", heartbeat(group, ids["a"], generation), HEARTBEAT)
    fixture.ask("a", join(group, ids["a"]), JOIN)
    again, generation = form(fixture, group, "a")
    fixture.ask("a", heartbeat(group, again["a"], generation), HEARTBEAT)
    fixture.ask("x", describe(group), DESCRIBE)


@dialogue
def descriptions(fixture: GroupFixture) -> None:
    topic, group = fixture.topic(), fixture.group()
    fixture.ask("x", commit(fixture.group("simple"), [(topic, 0, 1)]), COMMIT)
    fixture.ask("x", commit("", [(topic, 0, 1)]), COMMIT)
    form_static(fixture, group, "ab")
    for version in range(6):
        with_operations = version >= 3
        asked = [group, fixture.group("nobody"), fixture.group("simple"), ""]
        fixture.ask("x", describe(*asked, operations=with_operations), version)
    fixture.ask("x", describe(), DESCRIBE)


@dialogue
def lists(fixture: GroupFixture) -> None:
    topic, group = fixture.topic(), fixture.group()
    fixture.ask("x", commit(fixture.group("simple"), [(topic, 0, 1)]), COMMIT)
    form(fixture, group, "a")
    form(fixture, fixture.group("connect"), "b", protocol_type="connect", protocols=[("default", b"x")])
    for version in range(6):
        list_own(fixture, "x", ListGroupsRequest(), version)
    for states in (["Stable"], ["stable", "EMPTY"], ["Dead"], ["nonsense"], ["PreparingRebalance"]):
        list_own(fixture, "x", ListGroupsRequest(states_filter=states), 4)
        list_own(fixture, "x", ListGroupsRequest(states_filter=states), 5)
    for types in (["classic"], ["CLASSIC", "consumer"], ["consumer"], ["nonsense"]):
        list_own(fixture, "x", ListGroupsRequest(types_filter=types), 5)


@dialogue
def coordinators(fixture: GroupFixture) -> None:
    group = fixture.group()
    for version in range(4):
        fixture.ask("x", FindCoordinatorRequest(key=group), version)
    fixture.ask("x", FindCoordinatorRequest(key=""), 3)
    for version in range(1, 4):
        for key_type in (2, 9, -1):
            fixture.ask("x", FindCoordinatorRequest(key=group, key_type=key_type), version)
    for version in (4, 5, 6):
        fixture.ask("x", FindCoordinatorRequest(coordinator_keys=[group, fixture.group("h")]), version)
        fixture.ask("x", FindCoordinatorRequest(coordinator_keys=[]), version)
        fixture.ask("x", FindCoordinatorRequest(coordinator_keys=[""]), version)
        for key_type in (2, 9):
            fixture.ask("x", FindCoordinatorRequest(coordinator_keys=[group], key_type=key_type), version)


@dialogue
def producer_ids(fixture: GroupFixture) -> None:
    # Kafka fetches its first block of ids on the first request, and is not ready until then.
    fixture.connection("x").ask(InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1), 5)
    fixture.sleep(1)
    for version in range(6):
        plain = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
        fixture.ask("x", plain, version)
        fixture.ask("x", InitProducerIdRequest(transactional_id="", transaction_timeout_ms=60_000), version)
    for producer_id, epoch in ((-1, 0), (4000, -1), (4000, 3)):
        fixture.ask(
            "x",
            InitProducerIdRequest(
                transactional_id=None, transaction_timeout_ms=1, producer_id=producer_id, producer_epoch=epoch
            ),
            4,
        )


@dialogue
def offsets_of_deleted_topics(fixture: GroupFixture) -> None:
    topic, kept, group = fixture.topic(), fixture.topic("kept"), fixture.group()
    fixture.ask("x", commit(group, [(topic, 0, 10), (topic, 1, 10), (kept, 0, 20)]), COMMIT)
    fixture.ask("x", commit(fixture.group("only"), [(topic, 0, 10)]), COMMIT)
    fixture.place.delete_topic(topic)
    fixture.ask("x", fetch_groups({group: None, fixture.group("only"): None}), FETCH)
    fixture.ask("x", describe(group, fixture.group("only")), DESCRIBE)


@dialogue
def retention_of_its_own(fixture: GroupFixture) -> None:
    topic, group = fixture.topic(), fixture.group()
    fixture.ask("x", commit(group, [(topic, 0, 10)], retention_ms=100), 4)
    fixture.ask("x", commit(group, [(topic, 1, 11)], retention_ms=1_000_000), 2)
    fixture.ask("x", commit(fixture.group("only"), [(topic, 0, 12)], retention_ms=100), 3)
    fixture.sleep(1.6)
    fixture.ask("x", fetch_groups({group: None, fixture.group("only"): None}), FETCH)
    fixture.ask("x", describe(group, fixture.group("only")), DESCRIBE)
