"""A broker that is about to stop asks the controller to move its leaderships, with the configured number of retries."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from broker.controller.controlled_shutdown import controlled_shutdown
from broker.metadata.metadata_cache import MetadataCache
from cluster.controller.commands import NO_EPOCH, CommandFence, UpdateMetadata
from cluster.metadata_image import BrokerImage
from config.broker_config import BrokerConfig
from protocol.errors import ApiError, ErrorCode
from protocol.topic_partition import TopicPartition

T0 = TopicPartition("t", 0)
Answer = Sequence[TopicPartition] | ApiError


class Controller:
    """Gives these answers in order."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[int, int]] = []
        self.then: Callable[[], None] | None = None
        """Called after each answer."""

    async def controlled_shutdown(self, broker_id: int, broker_epoch: int) -> Sequence[TopicPartition]:
        self.asked.append((broker_id, broker_epoch))
        answer = self.answers.pop(0)
        if self.then is not None:
            asyncio.get_running_loop().call_soon(self.then)
        if isinstance(answer, ApiError):
            raise answer
        return answer


def brokers(*broker_ids: int, controller_id: int = 8) -> UpdateMetadata:
    live = {each: BrokerImage(each, 1, {}) for each in broker_ids}
    return UpdateMetadata(controller_id, 1, NO_EPOCH, live_brokers=live)


def hand_over(controller: Any, metadata: MetadataCache | None = None, **settings: str) -> bool:
    if metadata is None:
        metadata = MetadataCache(CommandFence())
        metadata.update_metadata(brokers(7, 8, 9))
    keys = {name.replace("_", "."): value for name, value in settings.items()}
    config = BrokerConfig({"log.dirs": "/data", "controlled.shutdown.retry.backoff.ms": "1"} | keys)
    return asyncio.run(controlled_shutdown(controller, 7, lambda: 50, config, metadata))


def test_one_answer_that_nothing_is_left_suffices() -> None:
    controller = Controller([])
    assert hand_over(controller)
    assert controller.asked == [(7, 50)]


@pytest.mark.parametrize("first", [[T0], ApiError(ErrorCode.NOT_CONTROLLER, "it moves")])
def test_it_is_asked_again_while_something_is_left(first: Answer) -> None:
    controller = Controller(first, first, [])
    assert hand_over(controller)
    assert len(controller.asked) == 3


def test_it_is_asked_no_more_than_the_configured_number_of_times() -> None:
    controller = Controller([T0], [T0], [])
    assert not hand_over(controller, controlled_shutdown_max_retries="2")
    assert len(controller.asked) == 2


def test_the_last_broker_asks_once() -> None:
    """A single broker can hand over to no one, however long it waits."""
    controller, metadata = Controller([T0], []), MetadataCache(CommandFence())
    metadata.update_metadata(brokers(7))
    assert not hand_over(controller, metadata)
    assert len(controller.asked) == 1


@pytest.mark.parametrize(
    "changes",
    [
        [brokers(7, 8), brokers(7, 8, controller_id=7), brokers(7)],
        [brokers(7, 8, 9, 10), brokers(7, 8, 9), brokers(7, 8), brokers(7)],
    ],
)
def test_it_waits_no_longer_than_for_another_broker_or_controller(changes: list[UpdateMetadata]) -> None:
    """Brokers that stop together: the rest cannot move anywhere, and no broker waits an hour to learn that again."""
    metadata = MetadataCache(CommandFence())
    metadata.update_metadata(brokers(7, 8, 9))
    controller = Controller(*[[T0]] * 10)
    left = list(changes)
    controller.then = lambda: metadata.update_metadata(left.pop(0)) if left else None
    hour = "3600000"
    assert not hand_over(
        controller, metadata, controlled_shutdown_max_retries="2", controlled_shutdown_retry_backoff_ms=hour
    )
    assert len(controller.asked) == len(changes) + 1


def test_it_can_be_disabled() -> None:
    controller = Controller()
    assert not hand_over(controller, controlled_shutdown_enable="false")
