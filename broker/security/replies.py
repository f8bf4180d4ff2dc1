"""Helpers for guards: removing refused topics from a request, and changing the response of a handler."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any

from broker.network.registry import Later, Reply, Waiting
from broker.security.access import Client
from protocol.acl_types import AclOperation, ResourceType

Outcome = Reply | Awaitable[Reply] | Waiting[Any] | Later[Any]
"""The result of a handler."""
Proceed = Callable[[Any], Outcome]
"""Passes a request to the handler."""
Change = Callable[[Any], Reply]


def then(outcome: Outcome, change: Change) -> Outcome:
    """Apply `change` to the response, now or when it arrives. `change` may raise whatever a handler may raise."""
    if isinstance(outcome, Later):
        changed: Later[Any] = Later(outcome.lets_pass, lambda value: change(outcome.response(value)))
        outcome.then(lambda _, value: changed.answer(value))
        return changed
    if isinstance(outcome, Waiting):
        answer: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        outcome.future.add_done_callback(partial(_pass_on, answer, change))
        answer.add_done_callback(partial(_give_up, outcome.future))
        return Waiting(answer, outcome.lets_pass, outcome.effective)
    if isinstance(outcome, Awaitable):
        return _later(outcome, change)
    return change(outcome)


async def _later(outcome: Awaitable[Reply], change: Change) -> Reply:
    return change(await outcome)


def _pass_on(answer: asyncio.Future[Reply], change: Change, done: asyncio.Future[Any]) -> None:
    if answer.done():
        return
    if done.cancelled():
        answer.cancel()
        return
    error = done.exception()
    if error is not None:
        answer.set_exception(error)
        return
    try:
        answer.set_result(change(done.result()))
    except Exception as mistake:  # noqa: BLE001  whoever awaits the answer logs it
        answer.set_exception(mistake)


def _give_up(work: asyncio.Future[Any], answer: asyncio.Future[Reply]) -> None:
    if answer.cancelled():
        work.cancel()


def denied_topics(client: Client, operation: AclOperation, topics: Iterable[Any]) -> frozenset[str]:
    """The names of a request's topics that are denied."""
    return client.denied(operation, ResourceType.TOPIC, [topic.name for topic in topics])


def without_topics(request: Any, denied: frozenset[str], refused: list[Any], proceed: Proceed) -> Outcome:
    """Pass on the request without the denied topics, and append their refusals to the response, unless the whole
    request is refused.
    """
    request.topics = [topic for topic in request.topics if topic.name not in denied]

    def add(response: Any) -> Any:
        if not getattr(response, "error_code", 0):
            response.topics = [*response.topics, *refused]
        return response

    return then(proceed(request), add)
