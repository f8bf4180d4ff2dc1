"""Dialogues about offsets and by administrators: requests in order, each with its client."""

from __future__ import annotations

from protocol.messages import (
    DeleteGroupsRequest,
    FindCoordinatorRequest,
    InitProducerIdRequest,
    JoinGroupRequest,
    ListGroupsRequest,
)
from tests.broker.groups.dialogue_steps import dialogue, form, form_static, list_own
from tests.broker.groups.group_stage import Stage
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
