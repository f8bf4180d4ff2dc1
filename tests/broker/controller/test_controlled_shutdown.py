"""A broker that is about to stop asks the controller to let others lead, as often as it is configured to."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from broker.controller.controlled_shutdown import controlled_shutdown
from config.broker_config import BrokerConfig
from protocol.errors import ApiError, ErrorCode
from protocol.topic_partition import TopicPartition

T0 = TopicPartition("t", 0)
Answer = Sequence[TopicPartition] | ApiError


class Controller:
    """Gives these answers, one after the other."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[int, int]] = []

    async def controlled_shutdown(self, broker_id: int, broker_epoch: int) -> Sequence[TopicPartition]:
        self.asked.append((broker_id, broker_epoch))
        answer = self.answers.pop(0)
        if isinstance(answer, ApiError):
            raise answer
        return answer


def hand_over(controller: Any, *, is_alone: bool = False, **settings: str) -> bool:
    keys = {name.replace("_", "."): value for name, value in settings.items()}
    config = BrokerConfig({"log.dirs": "/data", "controlled.shutdown.retry.backoff.ms": "1"} | keys)
    return asyncio.run(controlled_shutdown(controller, 7, lambda: 50, config, lambda: is_alone))


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
    """Nobody can take over, however long it waits."""
    controller = Controller([T0], [])
    assert not hand_over(controller, is_alone=True)
    assert len(controller.asked) == 1


def test_it_can_be_disabled() -> None:
    controller = Controller()
    assert not hand_over(controller, controlled_shutdown_enable="false")
