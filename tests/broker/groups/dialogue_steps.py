"""The register of dialogues, and the steps that most of them share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from protocol.errors import ErrorCode
from protocol.messages.group_admin import ListGroupsRequest
from protocol.messages.groups import JoinGroupRequest, SyncGroupRequest
from tests.broker.groups.group_fixture import GroupFixture
from tests.kit.group_requests import JOIN, SYNC, join, sync

Dialogue = Callable[[GroupFixture], None]
DIALOGUES: dict[str, Dialogue] = {}


def dialogue(function: Dialogue) -> Dialogue:
    """Register a dialogue."""
    DIALOGUES[function.__name__.replace("_", "-")] = function
    return function


def new_id(fixture: GroupFixture, who: str, group: str, **how: Any) -> str:
    """A new member id for `who` from JoinGroup; not recorded."""
    response: Any = fixture.connection(who).ask(join(group, **how), JOIN)
    assert response.error_code == ErrorCode.MEMBER_ID_REQUIRED, response
    return str(response.member_id)


def form(fixture: GroupFixture, group: str, who: str, **how: Any) -> tuple[dict[str, str], int]:
    """A stable group of the members in `who`, led by the first; returns their ids and the generation. Not recorded."""
    ids = {each: new_id(fixture, each, group, **how) for each in who}
    for each in who:
        fixture.send(each, join(group, ids[each], **how), JOIN)
        if each == who[0]:
            fixture.sleep(0.03)
    joined: list[Any] = [fixture.connection(each).receive(JoinGroupRequest, JOIN) for each in who]
    assert {each.error_code for each in joined} == {ErrorCode.NONE}, joined
    assert {each.leader for each in joined} == {ids[who[0]]}
    generation = joined[0].generation_id
    protocol = {"protocol_type": joined[0].protocol_type, "protocol_name": joined[0].protocol_name}
    assignments = {ids[each]: each.encode() for each in who}
    for each in who:
        fixture.send(
            each, sync(group, ids[each], generation, assignments if each == who[0] else None, **protocol), SYNC
        )
    for each in who:
        response: Any = fixture.connection(each).receive(SyncGroupRequest, SYNC)
        assert response.assignment == each.encode()
    return ids, generation


def form_static(fixture: GroupFixture, group: str, who: str, **how: Any) -> tuple[dict[str, str], int]:
    """A stable group of static members with the instance ids in `who`; not recorded."""
    for each in who:
        fixture.send(each, join(group, instance=each, **how), JOIN)
        if each == who[0]:
            fixture.sleep(0.03)
    joined: dict[str, Any] = {each: fixture.connection(each).receive(JoinGroupRequest, JOIN) for each in who}
    ids = {each: joined[each].member_id for each in who}
    generation = joined[who[0]].generation_id
    assert joined[who[0]].leader == ids[who[0]]
    assignments = {ids[each]: each.encode() for each in who}
    for each in who:
        given = assignments if each == who[0] else None
        fixture.send(each, sync(group, ids[each], generation, given, instance=each), SYNC)
    for each in who:
        response: Any = fixture.connection(each).receive(SyncGroupRequest, SYNC)
        assert response.assignment == each.encode()
    return ids, generation


def list_own(fixture: GroupFixture, who: str, request: ListGroupsRequest, version: int) -> None:
    """ListGroups; only this dialogue's groups are recorded."""
    response: Any = fixture.connection(who).ask(request, version)
    response.groups = [group for group in response.groups if group.group_id.startswith(fixture.name)]
    fixture.note(f"{who} ListGroups v{version}", response)
