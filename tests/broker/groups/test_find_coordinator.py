"""FindCoordinator: the coordinator of a group, and the topic that it needs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from broker.metadata.auto_topic_creation import InternalTopicCreator
from protocol.errors import ApiError, ErrorCode
from protocol.messages.coordinators import FindCoordinatorRequest
from protocol.topic_partition import CONSUMER_OFFSETS, TRANSACTION_STATE
from tests.broker.groups.group_fixture import OFFSETS_PARTITIONS
from tests.broker.groups.local_place import Local


@pytest.fixture
def place() -> Iterator[Local]:
    local = Local()
    yield local
    local.close()


def ask(place: Local, request: Any, version: int) -> Any:
    return place.connect("x").ask(request, version)


def test_the_first_lookup_creates_the_topic(place: Local) -> None:
    place.image = place.image.with_topics(removed=[CONSUMER_OFFSETS])
    place.on_create = partial(place.create_topic, CONSUMER_OFFSETS, OFFSETS_PARTITIONS)
    response = ask(place, FindCoordinatorRequest(coordinator_keys=["g"]), 4)
    assert place.created == [CONSUMER_OFFSETS]
    assert (response.coordinators[0].error_code, response.coordinators[0].node_id) == (ErrorCode.NONE, 0)


def test_a_topic_that_cannot_be_created_is_not_available(place: Local) -> None:
    place.image = place.image.with_topics(removed=[CONSUMER_OFFSETS])

    def refuse() -> None:
        raise ApiError(ErrorCode.INVALID_REPLICATION_FACTOR, "too few brokers")

    place.on_create = refuse
    for version in (3, 4):
        request = FindCoordinatorRequest(key="g") if version == 3 else FindCoordinatorRequest(coordinator_keys=["g"])
        response = ask(place, request, version)
        found = response if version == 3 else response.coordinators[0]
        assert (found.error_code, found.node_id, found.host, found.port) == (
            ErrorCode.COORDINATOR_NOT_AVAILABLE, -1, "", -1,
        )  # fmt: skip


def test_a_creation_that_takes_long_is_not_waited_for(place: Local) -> None:
    async def slowly(_: str) -> None:
        await asyncio.sleep(100)

    creator = InternalTopicCreator(slowly)
    started_s = place.loop.time()

    async def twice() -> None:
        await asyncio.gather(creator.created("t", 1.0), creator.created("t", 1.0))
        await creator.close()

    place.run(twice)
    assert place.loop.time() - started_s < 2


@pytest.mark.parametrize("version", [1, 3, 4, 6])
def test_the_first_transactional_id_creates_the_topic_of_transactions(place: Local, version: int) -> None:
    request = FindCoordinatorRequest(key="t", coordinator_keys=["t"], key_type=1)
    if version < 4:
        request.coordinator_keys = []
    else:
        request.key = ""
    place.on_create = partial(place.create_topic, TRANSACTION_STATE, OFFSETS_PARTITIONS)
    response = ask(place, request, version)
    found = response if version < 4 else response.coordinators[0]
    assert place.created == [TRANSACTION_STATE]
    assert (found.error_code, found.node_id) == (ErrorCode.NONE, 0)
