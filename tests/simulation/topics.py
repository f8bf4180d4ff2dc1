"""The topics of a seed: created at its start; one of them is deleted and recreated while clients use it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random

from client import admin
from client.errors import ClientError
from client.kafka_client import KafkaClient
from protocol.errors import ApiError, ErrorCode
from protocol.messages.topics import DeleteTopicsRequest, DeleteTopicsResponse
from protocol.uuids import ZERO_UUID, Uuid
from tests.simulation import history
from tests.simulation.plan import Plan, TopicPlan
from tests.simulation.world import World

_BETWEEN_RENEWALS_S = 15.0
"""More than the lifetime of a request: a CreateTopics of one renewal never takes effect in the next."""
_RETRIED = frozenset({ErrorCode.POLICY_VIOLATION, ErrorCode.INVALID_REPLICATION_FACTOR})
"""Temporary refusals that clients do not retry: for a full disk or too few brokers."""


class Topics:
    """The work of an administrator. `exist` once all topics do; `is_renewing` while one is being deleted and
    recreated.
    """

    def __init__(
        self,
        world: World,
        plan: Plan,
        cluster: str,
        feed: Callable[[history.Event], None],
        on_deletion: Callable[[str], None],
    ) -> None:
        """`on_deletion(topic)` is called when a deletion was acknowledged."""
        self.exist = False
        self.is_renewing = False
        self.renewals = 0
        self._world = world
        self._plan = plan
        self._cluster = cluster
        self._feed = feed
        self._on_deletion = on_deletion
        self._renewed_at = 0.0
        self._rng = Random(f"topics {world.seed}")

    @property
    def may_renew(self) -> bool:
        """Whether a deletion may begin now."""
        is_over = self._world.loop.time() > self._renewed_at + _BETWEEN_RENEWALS_S
        return self.exist and not self.is_renewing and self._plan.renewed is not None and (not self.renewals or is_over)

    def was_renewed(self, topic: str) -> bool:
        """Whether `topic` may have been recreated since the start."""
        renewed = self._plan.renewed
        return renewed is not None and topic == renewed.name and (self.is_renewing or self.renewals > 0)

    async def create_all(self, client: KafkaClient, _reader: str) -> None:
        """Create the plan's topics, with as many retries as necessary."""
        for topic in self._plan.all_topics:
            await self._create(client, topic)
        self.exist = True

    async def renew(self, client: KafkaClient, _reader: str) -> None:
        """Delete the topic chosen by the plan, and recreate it. Start it when `may_renew`."""
        topic = self._plan.renewed
        assert topic is not None
        topic_id = await self._id_of(client, topic.name)
        logs = [f"{self._cluster}/{topic.name}-{number}" for number in range(topic.partitions)]
        for log in logs:
            self._feed(history.DeletionInvoked(self._world.loop.time(), log))
        await self._delete(client, topic_id)
        for log in logs:
            self._feed(history.LogDeleted(self._world.loop.time(), log))
        self._on_deletion(topic.name)
        await asyncio.sleep(self._rng.choice([0.0, 0.1, 3.0]) * self._rng.random())
        await self._create(client, topic, before=topic_id)
        for log in logs:
            self._feed(history.LogMadeAgain(self._world.loop.time(), log))
        self.renewals += 1
        self._renewed_at = self._world.loop.time()
        self.is_renewing = False

    async def _create(self, client: KafkaClient, topic: TopicPlan, before: Uuid = ZERO_UUID) -> None:
        """Create a topic. While brokers that hold a deleted one of its name are away, that one still exists, marked for
        deletion and with the id `before`.
        """
        while True:
            try:
                await admin.create_topic(
                    client,
                    topic.name,
                    partitions=topic.partitions,
                    replication_factor=self._plan.replication_factor,
                    configs=topic.config,
                )
            except ApiError as error:
                if not error.error_code.retriable and error.error_code not in _RETRIED:
                    if error.error_code != ErrorCode.TOPIC_ALREADY_EXISTS:
                        raise
                    if await self._is_new(client, topic.name, before):
                        break
                await asyncio.sleep(0.1)
            except ClientError:
                continue
            else:
                break
        self._world.trace.note("admin", f"{topic.name} exists")

    @staticmethod
    async def _is_new(client: KafkaClient, name: str, before: Uuid) -> bool:
        """Whether a topic of this name exists with another id than `before`."""
        try:
            topic = (await client.describe_topics([name])).topics.get(name)
        except ClientError:
            return False
        return topic is not None and topic.topic_id not in (ZERO_UUID, before)

    async def _id_of(self, client: KafkaClient, name: str) -> Uuid:
        while True:
            topic = (await client.describe_topics([name])).topics.get(name)
            if topic is not None and topic.topic_id != ZERO_UUID:
                return topic.topic_id
            await asyncio.sleep(0.1)

    async def _delete(self, client: KafkaClient, topic_id: Uuid) -> None:
        """Delete by id: a late request, after its sender has retried, must not hit the next topic."""
        state = DeleteTopicsRequest.DeleteTopicState(name=None, topic_id=topic_id)
        request = DeleteTopicsRequest(topics=[state], timeout_ms=5_000)
        while True:
            try:
                answer = await client.ask_controller("deleteTopics", request, DeleteTopicsResponse, _error_codes)
            except (ApiError, ClientError):
                continue
            code = ErrorCode.of(answer.responses[0].error_code)
            if code in {ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_ID}:
                return
            if not code.retriable and code not in _RETRIED:
                raise ApiError(code, answer.responses[0].error_message or "")
            await asyncio.sleep(0.1)


def _error_codes(answer: DeleteTopicsResponse) -> list[int]:
    return [each.error_code for each in answer.responses]
