"""The topic handlers over an in-memory cluster, and helpers that build requests to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from broker.handlers.topics import TopicHandlers
from broker.metadata.config_service import DescribedConfig
from broker.network.client_quotas import ClientQuotas
from protocol.config_resources import ConfigSource
from protocol.errors import ErrorCode
from protocol.messages.topics import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from protocol.uuids import ZERO_UUID, Uuid
from tests.kit.controller.controller_fixtures import Cluster, context

DESCRIBED = [
    DescribedConfig(
        "retention.ms",
        "1000",
        ConfigSource.DYNAMIC_TOPIC_CONFIG,
        read_only=False,
        sensitive=False,
        synonyms=(),
        config_type=5,
        documentation=None,
    )
]

Answer = tuple[ErrorCode, str | None]


class Broker(Cluster):
    """The handlers over a cluster, and helpers that build requests."""

    def handlers(self) -> TopicHandlers:
        clock = self.machine.clock
        return TopicHandlers(
            self.cache, self.service, lambda overrides: DESCRIBED if overrides else [], ClientQuotas(clock)
        )

    async def create_response(
        self,
        *topics: CreateTopicsRequest.CreatableTopic,
        version: int = 7,
        timeout_ms: int = 1000,
        validate: bool = False,
    ) -> CreateTopicsResponse:
        request = CreateTopicsRequest(topics=list(topics), timeout_ms=timeout_ms, validate_only=validate)
        response = await self.handlers().create_topics(context(version), request)
        response.to_bytes(version)
        return response

    async def create(self, *topics: CreateTopicsRequest.CreatableTopic, **options: int) -> list[Answer]:
        response = await self.create_response(*topics, **options)
        return [(ErrorCode(each.error_code), each.error_message) for each in response.topics]

    async def delete(
        self, *topics: str | Uuid | tuple[str | None, Uuid], version: int = 6, timeout_ms: int = 1000
    ) -> DeleteTopicsResponse:
        if version < 6:
            names = [each for each in topics if isinstance(each, str)]
            request = DeleteTopicsRequest(topic_names=names, timeout_ms=timeout_ms)
        else:
            states = []
            for each in topics:
                name, topic_id = (
                    (each, ZERO_UUID) if isinstance(each, str) else (None, each) if isinstance(each, Uuid) else each
                )
                states.append(DeleteTopicsRequest.DeleteTopicState(name=name, topic_id=topic_id))
            request = DeleteTopicsRequest(topics=states, timeout_ms=timeout_ms)
        response = await self.handlers().delete_topics(context(version), request)
        response.to_bytes(version)
        return response

    async def grow(
        self,
        *topics: tuple[str, int, Sequence[Sequence[int]] | None],
        timeout_ms: int = 1000,
        validate: bool = False,
    ) -> list[tuple[str, ErrorCode, str | None]]:
        request = CreatePartitionsRequest(
            topics=[
                CreatePartitionsRequest.CreatePartitionsTopic(
                    name=name,
                    count=count,
                    assignments=None
                    if assignments is None
                    else [
                        CreatePartitionsRequest.CreatePartitionsAssignment(broker_ids=list(brokers))
                        for brokers in assignments
                    ],
                )
                for name, count, assignments in topics
            ],
            timeout_ms=timeout_ms,
            validate_only=validate,
        )
        response: CreatePartitionsResponse = await self.handlers().create_partitions(context(3), request)
        response.to_bytes(3)
        return [(each.name, ErrorCode(each.error_code), each.error_message) for each in response.results]


def topic(
    name: str,
    partitions: int = 1,
    factor: int = 1,
    assignments: Sequence[tuple[int, Sequence[int]]] = (),
    configs: Mapping[str, str | None] | None = None,
) -> CreateTopicsRequest.CreatableTopic:
    return CreateTopicsRequest.CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=factor,
        assignments=[
            CreateTopicsRequest.CreatableReplicaAssignment(partition_index=number, broker_ids=list(brokers))
            for number, brokers in assignments
        ],
        configs=[
            CreateTopicsRequest.CreatableTopicConfig(name=key, value=value) for key, value in (configs or {}).items()
        ],
    )


def placed(name: str, *assignments: tuple[int, Sequence[int]]) -> CreateTopicsRequest.CreatableTopic:
    return topic(name, -1, -1, assignments)
