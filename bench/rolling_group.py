"""A group of many members in one process, without timers: a member that must rejoin does so at once.

With a client library, a member learns of a rebalance from its next heartbeat, seconds later with any broker. Here, all
of the time is the coordinator's, plus that of this process, whose CPU is reported.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Sequence
from typing import Final

from bench.wait_loads import encoded
from client.assignors import encode_assignment, encode_subscription
from protocol.errors import ErrorCode
from protocol.messages.groups import HeartbeatResponse, JoinGroupResponse, LeaveGroupResponse, SyncGroupResponse
from protocol.topic_partition import TopicPartition
from tests.kit import group_requests as requests

_PATIENCE_S: Final = 300
_SESSION_MS: Final = 45_000
_SIZE: Final = struct.Struct(">i")
_BODY_AT: Final = 9
"""The body comes after the size, the correlation id and the empty tagged fields."""
_MOST_AT_ONCE: Final = 1 << 18
_ERROR: Final = struct.Struct(">ih")
"""Throttle time and error code, the first fields of each response."""
_JOINED: Final = struct.Struct(">ihi")
"""The same, followed by the generation."""
_EMPTY: Final = 1
"""The last byte but one of a response whose last field, an array or bytes, is empty."""


class _Member:
    """A member with a separate connection. A new member first gets its id, so that the group waits for it.

    Repeated requests are encoded only once: this process should not distort the measurement.
    """

    def __init__(self, port: int, group_id: str, topic: str) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), _PATIENCE_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._group_id = group_id
        self._protocols = [("range", encode_subscription([topic]))]
        self.generation = -1
        self._send(self._join(""))
        answer = JoinGroupResponse.decode(self._receive(), requests.JOIN)
        if answer.error_code != ErrorCode.MEMBER_ID_REQUIRED:
            raise RuntimeError(f"a new member got no id: {answer}")
        self.member_id = answer.member_id
        self._join_request = self._join(self.member_id)
        self._heartbeat = _for_generations(
            lambda generation: encoded(requests.heartbeat(group_id, self.member_id, generation), requests.HEARTBEAT)
        )
        self._empty_sync = _for_generations(lambda generation: self._sync(generation, {}))

    def close(self) -> None:
        self._socket.close()

    def _send(self, request: bytes) -> None:
        self._socket.sendall(request)

    def _receive(self) -> memoryview:
        """The body of the awaited response, after its flexible header."""
        data = self._socket.recv(_MOST_AT_ONCE)
        while data and (len(data) < _SIZE.size or len(data) < _SIZE.size + _SIZE.unpack_from(data)[0]):
            more = self._socket.recv(_MOST_AT_ONCE)
            data = data + more if more else b""
        if not data:
            raise RuntimeError("the broker hung up on a member")
        return memoryview(data)[_BODY_AT:]

    def _join(self, member_id: str) -> bytes:
        request = requests.join(
            self._group_id, member_id, protocols=self._protocols,
            session_ms=_SESSION_MS, rebalance_ms=_PATIENCE_S * 1000,
        )  # fmt: skip
        return encoded(request, requests.JOIN)

    def _sync(self, generation: int, assignments: dict[str, bytes]) -> bytes:
        return encoded(requests.sync(self._group_id, self.member_id, generation, assignments), requests.SYNC)

    def ask_to_join(self) -> None:
        self._send(self._join_request)

    def joined(self) -> Sequence[JoinGroupResponse.JoinGroupResponseMember]:
        """The members, if this one is the leader and assigns their partitions."""
        body = self._receive()
        _, error_code, self.generation = _JOINED.unpack_from(body)
        if not error_code and body[-2] == _EMPTY:
            return ()
        answer = JoinGroupResponse.decode(body, requests.JOIN)
        if answer.error_code:
            raise RuntimeError(f"a member could not join: {answer}")
        return answer.members

    def ask_to_sync(self, assignments: dict[str, bytes]) -> None:
        self._send(self._sync(self.generation, assignments) if assignments else self._empty_sync(self.generation))

    def synced(self) -> None:
        body = self._receive()
        if _ERROR.unpack_from(body)[1] or body[-2] == _EMPTY:
            raise RuntimeError(f"a member got no assignment: {SyncGroupResponse.decode(body, requests.SYNC)}")

    def ask_heartbeat(self) -> None:
        self._send(self._heartbeat(self.generation))

    def heard_of_rebalance(self) -> None:
        body = self._receive()
        if _ERROR.unpack_from(body)[1] != ErrorCode.REBALANCE_IN_PROGRESS:
            answer = HeartbeatResponse.decode(body, requests.HEARTBEAT)
            raise RuntimeError(f"a member did not hear of the rebalance: {answer}")

    def leave(self) -> None:
        self._send(encoded(requests.leave(self._group_id, (self.member_id, None)), requests.LEAVE))
        answer = LeaveGroupResponse.decode(self._receive(), requests.LEAVE)
        if answer.error_code or answer.members[0].error_code:
            raise RuntimeError(f"a member could not leave: {answer}")
        self.close()


def _for_generations(encode: Callable[[int], bytes]) -> Callable[[int], bytes]:
    """Cache of `encode` for requests that differ only in their generation, which is patched into the encoded bytes."""
    none, every = encode(0), encode(-1)
    at = next(position for position, (bit, other) in enumerate(zip(none, every, strict=True)) if bit != other)
    head, tail = none[:at], none[at + _SIZE.size :]
    return lambda generation: head + _SIZE.pack(generation) + tail


class RollingGroup:
    """The members of a group that reads a topic. Every method returns when each member has its partitions, and raises
    RuntimeError if one has none.
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
        """Let all members join."""
        self._members = [self._new_member() for _ in self._shares]
        self._rebalance()

    def restart_each(self) -> None:
        """Let one member after the other leave and come back."""
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
        """Close all connections."""
        for member in self._members:
            member.close()

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
