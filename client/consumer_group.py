"""Membership in a group with the classic protocol: join, sync, heartbeats, commits, leaving (`ConsumerCoordinator`).

The member joins in a separate task, because a join takes as long as the slowest member; a poll picks up its outcome.
Heartbeats run in another task.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple, TypeVar

from client.assignors import (
    ASSIGNORS,
    COOPERATIVE,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from client.errors import ClientError, DisconnectedError, FencedError, raise_for
from client.groups import GroupMetadata, OffsetAndMetadata, commit_errors, make_commit
from client.kafka_client import COORDINATOR, COORDINATOR_ERRORS, Coordinator, CoordinatorType, KafkaClient
from client.settings import ConsumerSettings
from protocol.errors import ApiError, ErrorCode
from protocol.messages.group_offsets import OffsetCommitResponse
from protocol.messages.groups import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from protocol.topic_partition import TopicPartition
from protocol.wire.schema import Request, Response

logger = logging.getLogger("kafka.clients.ConsumerCoordinator")

R = TypeVar("R", bound=Response)

PROTOCOL_TYPE: Final = "consumer"
_NO_GENERATION: Final = -1
_SEVERAL_LEAVE_VERSION: Final = 3
_JOIN_GRACE_MS: Final = 5_000


class Joined(NamedTuple):
    """The outcome of a join."""

    generation: int
    protocol: str
    partitions: list[TopicPartition]


class ConsumerCoordinator:
    """This process as a member of `group_id`. Heartbeats set `news` when the consumer must act."""

    def __init__(self, client: KafkaClient, settings: ConsumerSettings, group_id: str, news: asyncio.Event) -> None:
        self.group_id = group_id
        self.member_id = ""
        self.generation = _NO_GENERATION
        self.owned: list[TopicPartition] = []
        """The partitions from the last join; cooperative assignors send them with the next join."""
        self.needs_join = True
        self.was_lost = False
        """Whether the group forgot this member, so that other members may own its partitions by now."""
        self.failure: ClientError | ApiError | None = None
        """The permanent failure of this member, if any."""
        self.partition_counts: dict[str, int] | None = None
        """As leader: the partition counts that the last assignment was made for."""
        self._client = client
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._news = news
        self.coordinator = Coordinator(client, group_id, CoordinatorType.GROUP, COORDINATOR)
        """The coordinator that this member joined at. A deposed broker that has not noticed yet may still name
        itself.
        """
        self._heartbeats: asyncio.Task[None] | None = None
        self.last_poll_s = self._loop.time()
        self.metadata = GroupMetadata(group_id, group_instance_id=settings.group_instance_id)
        """This member as of its last join: if the group has forgotten it meanwhile, the broker fences it."""

    @property
    def is_cooperative(self) -> bool:
        """Whether all assignors let members keep their partitions while they join (KIP-429)."""
        return COOPERATIVE.issuperset(self._settings.assignors)

    # -- joining -------------------------------------------------------------------------------------------------------

    async def join(self, topics: Iterable[str]) -> Joined | None:
        """Join, with retries after transient errors, and get an assignment. Returns None if the group has forgotten
        this member meanwhile: it must give up its partitions before it joins again. Raises ApiError and FencedError.
        """
        backoff = self._client.backoff()
        while True:
            try:
                joined = await self._join_once(sorted(topics))
            except DisconnectedError as error:
                logger.debug("Join of group %s failed: %s", self.group_id, error)
                self.coordinator.forget()
            except ApiError as error:
                self._react(error.error_code)
                if not (error.error_code.retriable or error.error_code in _REJOIN_ERRORS):
                    raise
            else:
                if not self.was_lost:
                    self.needs_join = False
                    self.metadata = self.metadata._replace(generation=self.generation, member_id=self.member_id)
                    self._start_heartbeats()
                    return joined
            if self.was_lost:
                return None
            await asyncio.sleep(backoff.next_s())

    async def _join_once(self, topics: list[str]) -> Joined:
        request = JoinGroupRequest(
            group_id=self.group_id,
            session_timeout_ms=self._settings.session_timeout_ms,
            rebalance_timeout_ms=self._settings.max_poll_interval_ms,
            member_id=self.member_id,
            group_instance_id=self._settings.group_instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocols=[
                JoinGroupRequest.JoinGroupRequestProtocol(name=name, metadata=self._subscription(topics))
                for name in self._settings.assignors
            ],
            reason="",
        )
        timeout_ms = self._settings.max_poll_interval_ms + _JOIN_GRACE_MS
        answer = await self._ask(request, JoinGroupResponse, timeout_ms)
        if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = request.member_id = answer.member_id
            answer = await self._ask(request, JoinGroupResponse, timeout_ms)
        raise_for(answer.error_code, f"join of group '{self.group_id}'")
        self.member_id = answer.member_id
        self.generation = answer.generation_id
        protocol = answer.protocol_name or ""
        self.partition_counts = None
        assignments: list[SyncGroupRequest.SyncGroupRequestAssignment] = []
        if answer.leader == answer.member_id and not answer.skip_assignment:
            assignments = await self._assign(protocol, answer.members)
        sync = await self._ask(
            SyncGroupRequest(
                group_id=self.group_id,
                generation_id=self.generation,
                member_id=self.member_id,
                group_instance_id=self._settings.group_instance_id,
                protocol_type=PROTOCOL_TYPE,
                protocol_name=protocol,
                assignments=assignments,
            ),
            SyncGroupResponse,
            timeout_ms,
        )
        raise_for(sync.error_code, f"sync of group '{self.group_id}'")
        return Joined(self.generation, protocol, decode_assignment(sync.assignment))

    def _subscription(self, topics: list[str]) -> bytes:
        owned = self.owned if self.is_cooperative else []
        return encode_subscription(
            topics, owned, self.generation if owned else _NO_GENERATION, self._settings.client_rack or None
        )

    async def _assign(
        self, protocol: str, members: list[JoinGroupResponse.JoinGroupResponseMember]
    ) -> list[SyncGroupRequest.SyncGroupRequestAssignment]:
        """As leader: assign partitions to all members, with the assignor that the group chose."""
        subscriptions = {
            member.member_id: decode_subscription(member.metadata, member.group_instance_id) for member in members
        }
        topics = sorted({topic for each in subscriptions.values() for topic in each.topics})
        metadata = await self._client.fetch_metadata(topics)
        counts = {name: len(topic.partitions) for name, topic in metadata.topics.items() if topic.partitions}
        self.partition_counts = counts
        assignment = ASSIGNORS[protocol](counts, subscriptions)
        return [
            SyncGroupRequest.SyncGroupRequestAssignment(member_id=member, assignment=encode_assignment(partitions))
            for member, partitions in assignment.items()
        ]

    # -- heartbeats ----------------------------------------------------------------------------------------------------

    def _start_heartbeats(self) -> None:
        if self._heartbeats is None or self._heartbeats.done():
            self._heartbeats = asyncio.create_task(self._beat())

    async def _beat(self) -> None:
        """Heartbeat until the member must rejoin, or the caller has stopped polling."""
        while not self.needs_join:
            await asyncio.sleep(self._settings.heartbeat_interval_ms / 1000)
            if (self._loop.time() - self.last_poll_s) * 1000 > self._settings.max_poll_interval_ms:
                logger.warning("Consumer poll timeout has expired; leaving group %s", self.group_id)
                await self.leave()
                self._lose()
                return
            request = HeartbeatRequest(
                group_id=self.group_id,
                generation_id=self.generation,
                member_id=self.member_id,
                group_instance_id=self._settings.group_instance_id,
            )
            try:
                answer = await self._ask(request, HeartbeatResponse)
            except (DisconnectedError, ApiError) as error:
                logger.debug("Heartbeat of group %s failed: %s", self.group_id, error)
                self.coordinator.forget()
                continue
            if answer.error_code and not self.needs_join:
                self._react(ErrorCode.of(answer.error_code))

    def _react(self, code: ErrorCode) -> None:
        """Handle an error code that the response to any request of a member may have."""
        if code in COORDINATOR_ERRORS:
            self.coordinator.forget()
        elif code == ErrorCode.REBALANCE_IN_PROGRESS:
            self.needs_join = True
        elif code == ErrorCode.FENCED_INSTANCE_ID:
            self.failure = FencedError(
                f"Another member of group '{self.group_id}' has taken {self._settings.group_instance_id}"
            )
        elif code == ErrorCode.UNKNOWN_MEMBER_ID:
            self.member_id = ""
            self._lose()
        elif code == ErrorCode.ILLEGAL_GENERATION:
            self._lose()
        elif not code.retriable:
            self.failure = ApiError(code, f"group '{self.group_id}'")
        self._news.set()

    def _lose(self) -> None:
        self.generation = _NO_GENERATION
        self.was_lost = True
        self.needs_join = True
        self._news.set()

    async def leave(self) -> None:
        """Leave, so that the other members need not wait for the session timeout. Static members stay (KIP-345)."""
        if self._heartbeats is not None and self._heartbeats is not asyncio.current_task():
            self._heartbeats.cancel()
            await asyncio.gather(self._heartbeats, return_exceptions=True)
            self._heartbeats = None
        member_id, self.member_id = self.member_id, ""
        if not member_id or self._settings.group_instance_id is not None:
            return
        try:
            connection = await self.coordinator.connect()
            if connection.in_flight:
                # Close the connection of a cancelled join: behind it, this request would wait for the rebalance.
                connection.close()
                connection = await self.coordinator.connect()
            version = connection.version_of(LeaveGroupRequest)
            if version >= _SEVERAL_LEAVE_VERSION:
                member = LeaveGroupRequest.MemberIdentity(member_id=member_id, reason="the consumer is being closed")
                request = LeaveGroupRequest(group_id=self.group_id, members=[member])
            else:
                request = LeaveGroupRequest(group_id=self.group_id, member_id=member_id)
            await connection.ask(request, LeaveGroupResponse, version)
        except (ClientError, ApiError) as error:
            logger.debug("Leaving group %s failed: %s", self.group_id, error)

    # -- offsets -------------------------------------------------------------------------------------------------------

    async def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Commit offsets as this member.

        Raises ApiError when the group or a partition refuses them, UNKNOWN_MEMBER_ID when the member is not in a
        generation: a broker accepts a commit without a generation into an empty group, as from an administrator, and a
        forgotten member would overwrite the offsets of its successors.
        """
        if self.generation == _NO_GENERATION:
            raise ApiError(
                ErrorCode.UNKNOWN_MEMBER_ID, f"commit by group '{self.group_id}': the consumer is not an active member"
            )
        request = make_commit(
            self.group_id,
            offsets,
            member_id=self.member_id,
            generation=self.generation,
            instance_id=self._settings.group_instance_id,
        )
        for partition, code in commit_errors(await self._ask(request, OffsetCommitResponse)).items():
            self._react(code)
            raise ApiError(code, f"commit of {partition} by group '{self.group_id}'")

    async def _ask(self, request: Request, response_type: type[R], timeout_ms: int | None = None) -> R:
        return await self.coordinator.ask(request, response_type, timeout_ms=timeout_ms)


_REJOIN_ERRORS: Final = frozenset(
    {ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID}
)
