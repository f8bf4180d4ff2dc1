"""A group of many members in one process, without timers: who has to rejoin asks at once.

With a client's library a member hears of a rebalance by its next heartbeat, seconds later whatever the broker is. Here
all of the time is the coordinator's, and this process's, whose CPU is shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from client.group_codec import encode_assignment, encode_subscription
from protocol.errors import ErrorCode
from protocol.messages import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from protocol.topic_partition import TopicPartition
from tests.kit import group_requests as requests
from tests.kit.wire_client import WireClient

_PATIENCE_S: Final = 300
_SESSION_MS: Final = 45_000


class _Member:
    """A member on a connection of its own. A new one is given its id first, so that the group waits for it."""

    def __init__(self, port: int, group_id: str, topic: str) -> None:
        self.client = WireClient("127.0.0.1", port, "load", _PATIENCE_S)
        self._group_id = group_id
        self._protocols = [("range", encode_subscription([topic]))]
        self.member_id = ""
        self.generation = -1
        answer = self.client.ask(self._join(), requests.JOIN)
        if not isinstance(answer, JoinGroupResponse) or answer.error_code != ErrorCode.MEMBER_ID_REQUIRED:
            raise RuntimeError(f"a new member got no id: {answer}")
        self.member_id = answer.member_id

    def _join(self) -> JoinGroupRequest:
        return requests.join(
            self._group_id, self.member_id, protocols=self._protocols,
            session_ms=_SESSION_MS, rebalance_ms=_PATIENCE_S * 1000,
        )  # fmt: skip

    def ask_to_join(self) -> None:
        self.client.send(self._join(), requests.JOIN)

    def joined(self) -> Sequence[JoinGroupResponse.JoinGroupResponseMember]:
        """The members, when this one is to assign partitions to them."""
        answer = self.client.receive(JoinGroupRequest, requests.JOIN)
        if not isinstance(answer, JoinGroupResponse) or answer.error_code:
            raise RuntimeError(f"a member could not join: {answer}")
        self.generation = answer.generation_id
        return answer.members

    def ask_to_sync(self, assignments: dict[str, bytes]) -> None:
        request = requests.sync(self._group_id, self.member_id, self.generation, assignments)
        self.client.send(request, requests.SYNC)

    def synced(self) -> None:
        answer = self.client.receive(SyncGroupRequest, requests.SYNC)
        if not isinstance(answer, SyncGroupResponse) or answer.error_code or not answer.assignment:
            raise RuntimeError(f"a member got no assignment: {answer}")

    def ask_heartbeat(self) -> None:
        request = requests.heartbeat(self._group_id, self.member_id, self.generation)
        self.client.send(request, requests.HEARTBEAT)

    def heard_of_rebalance(self) -> None:
        answer = self.client.receive(HeartbeatRequest, requests.HEARTBEAT)
        if not isinstance(answer, HeartbeatResponse) or answer.error_code != ErrorCode.REBALANCE_IN_PROGRESS:
            raise RuntimeError(f"a member did not hear of the rebalance: {answer}")

    def leave(self) -> None:
        answer = self.client.ask(requests.leave(self._group_id, (self.member_id, None)), requests.LEAVE)
        if not isinstance(answer, LeaveGroupResponse) or answer.error_code or answer.members[0].error_code:
            raise RuntimeError(f"a member could not leave: {answer}")
        self.client.close()


class RollingGroup:
    """The members of a group that reads a topic. Every method returns when each has its partitions, and raises
    RuntimeError when one has none.
    """

    def __init__(self, port: int, group_id: str, topic: str, members: int, partitions: int) -> None:
        self._port = port
        self._group_id = group_id
        self._topic = topic
        self._members: list[_Member] = []
        self._shares = [
            encode_assignment(TopicPartition(topic, partition) for partition in range(number, partitions, members))
            for number in range(members)
        ]

    def assemble(self) -> None:
        """All members join."""
        self._members = [self._new_member() for _ in self._shares]
        self._rebalance()

    def restart_each(self) -> None:
        """One member after the other leaves and comes back."""
        for number in range(len(self._members)):
            self._members[number].leave()
            others = self._members[:number] + self._members[number + 1 :]
            for member in others:
                member.ask_heartbeat()
            self._members[number] = self._new_member()
            for member in others:
                member.heard_of_rebalance()
            self._rebalance()

    def close(self) -> None:
        """Close the connections of all."""
        for member in self._members:
            member.client.close()

    def _new_member(self) -> _Member:
        return _Member(self._port, self._group_id, self._topic)

    def _rebalance(self) -> None:
        for member in self._members:
            member.ask_to_join()
        assignments: dict[str, bytes] = {}
        leader = self._members[0]
        for member in self._members:
            if known := member.joined():
                leader = member
                ids = sorted(each.member_id for each in known)
                assignments = dict(zip(ids, self._shares, strict=True))
        for member in self._members:
            if member is not leader:
                member.ask_to_sync({})
        leader.ask_to_sync(assignments)
        for member in self._members:
            member.synced()
