"""A group on a whole broker in this process, which restarts: members and offsets survive."""

from __future__ import annotations

from typing import Any

from protocol.errors import ErrorCode
from protocol.messages.coordinators import FindCoordinatorRequest
from tests.kit.group_requests import (
    COMMIT,
    DESCRIBE,
    FETCH,
    HEARTBEAT,
    JOIN,
    SYNC,
    commit,
    describe,
    fetch_groups,
    heartbeat,
    join,
    sync,
)
from tests.kit.in_process import InProcessBroker, Wire, play
from tests.kit.wire_requests import new_topic


def test_a_group_survives_a_restart() -> None:
    before: dict[str, Any] = {}

    async def form(broker: InProcessBroker, wire: Wire) -> None:
        await wire.ask(new_topic("t", 2), 7)
        found: Any = await wire.ask(FindCoordinatorRequest(coordinator_keys=["g"]), 4)
        assert found.coordinators[0].error_code == ErrorCode.NONE, "the first look-up waits for the topic"
        member: Any = await wire.ask(join("g"), JOIN)
        joined: Any = await wire.ask(join("g", member.member_id), JOIN)
        assignment = {member.member_id: b"all"}
        synced: Any = await wire.ask(sync("g", member.member_id, joined.generation_id, assignment), SYNC)
        assert synced.assignment == b"all"
        for offset in range(50):
            offsets = [("t", 0, offset), ("t", 1, 2 * offset)]
            await wire.ask(commit("g", offsets, member.member_id, joined.generation_id), COMMIT)
        before.update(member=member.member_id, generation=joined.generation_id)
        before["group"] = (await wire.ask(describe("g"), DESCRIBE)).groups[0]  # type: ignore[attr-defined]

    async def go_on(broker: InProcessBroker, wire: Wire) -> None:
        async def described() -> Any:
            answer: Any = await wire.ask(describe("g"), DESCRIBE)
            return answer.groups[0]

        group = await described()
        while group.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            group = await described()
        assert group == before["group"]
        fetched: Any = await wire.ask(fetch_groups({"g": None}), FETCH)
        offsets = fetched.groups[0].topics[0].partitions
        assert {each.partition_index: each.committed_offset for each in offsets} == {0: 49, 1: 98}
        beat: Any = await wire.ask(heartbeat("g", before["member"], before["generation"]), HEARTBEAT)
        assert beat.error_code == ErrorCode.NONE

    play(form, go_on)
