"""A large request, which is decoded, handled and answered in slices."""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial
from typing import Any

from broker.network.memory import Turn
from broker.network.registry import NOTHING, Later, Reply, RequestKind, Waiting, complete_future
from broker.network.reply_writer import Parts
from broker.network.shares import SHARE, JoinedAnswers, Split, split_of
from environment.contract import Clock
from environment.slices import Slices
from protocol.api_keys import ApiKey
from protocol.messages import RESPONSE_TYPES
from protocol.wire.schema import Request, Response


class LargeRequest:
    """One request that is decoded and handled in slices."""

    def __init__(
        self, kind: RequestKind, correlation_id: int, body: memoryview, clock: Clock, turn: Turn | None
    ) -> None:
        """Decoding starts once `turn` is granted."""
        self._kind = kind
        self._correlation_id = correlation_id
        self._body = body
        self._clock = clock
        self._turn = turn
        self._slices: Slices
        self._found: dict[int, Any] = {}
        """The decoder's notes on the positions of the request's arrays."""
        self._is_decoded = False
        self.effective: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the effects of the request are complete."""
        self.waiting: Waiting[Parts | None]
        """The object that represents this request on its connection."""

    async def serve(self) -> Reply:
        """Return the response. Raises what the decode function and the handler raise."""
        try:
            if self._turn is not None:
                await self._turn.granted
            self._slices = Slices(self._clock)
            request = [await self._decode()]
            split = split_of(request[0], self._kind.route.splits)
            reply = await (self._handle(request[0]) if split is None else self._handle_shares(request[0], split))
        finally:
            self._found.clear()
            if not self.effective.done():
                self.effective.set_result(None)
        await self._slices.free(request)
        return reply

    async def _decode(self) -> Request:
        slices, kind = self._slices, self._kind
        await slices.pause()
        body, self._body = self._body, memoryview(b"")
        decode = kind.route.request_type.decoder_in_slices(kind.context.api_version, lazy=kind.route.lazy)
        request = await slices.finish(decode(body, 0, slices.should_yield, self._found))
        await slices.pause()  # the handler starts its own slices
        self._is_decoded = True
        return request

    async def _handle(self, request: Request) -> Reply:
        kind = self._kind
        context = kind.context.replace(correlation_id=self._correlation_id) if kind.route.in_order else kind.context
        reply = (kind.route.handle_large or kind.handle)(context, request)
        if reply is None or isinstance(reply, Response):
            return reply
        if isinstance(reply, Later):
            response = _response_of(reply)
            self._mark_effective(reply.lets_pass)
            return await response
        if isinstance(reply, Waiting):
            if reply.effective is None or reply.effective.done():
                self._mark_effective(reply.lets_pass)
            else:
                reply.effective.add_done_callback(partial(self._mark_effective, reply.lets_pass))
            response = reply.future
            return await response
        return await reply

    async def _handle_shares(self, request: Request, split: Split) -> Reply:
        """Handle the request in shares, and join their answers.

        Each share is handled once the effects of the previous one are complete, as if the client had sent them one by
        one. If a share fails as a whole, its error is the answer and the remaining shares are skipped. The client's
        timeout covers all shares together.
        """
        slices, now_s = self._slices, self._clock.monotonic_s
        started_s = now_s()
        size = self._clock.elements_at_once(min(SHARE, self._kind.route.at_once))
        joined = JoinedAnswers(split, RESPONSE_TYPES[self._kind.route.api_key], self._kind.context.api_version)
        answers: deque[Response | asyncio.Future[Response]] = deque()
        lets_pass = NOTHING
        for share in split.shares(request, size, slices.should_yield):
            if share is not None:
                timeout_ms: int = getattr(share, "timeout_ms", 0)
                if timeout_ms > 0:
                    share.timeout_ms = max(0, timeout_ms - int((now_s() - started_s) * 1000))  # type: ignore[attr-defined]
                answer, lets_pass = await self._effect(share)
                answers.append(answer)
                while answers and not joined.is_refusal and _is_ready(answers[0]):
                    joined.add(await _response(answers.popleft()))
                if joined.is_refusal:
                    break
            if slices.should_yield():
                await slices.pause()
        self._mark_effective(lets_pass)
        while answers and not joined.is_refusal:
            joined.add(await _response(answers.popleft()))
            if slices.should_yield():
                await slices.pause()
        return joined.response()

    async def _effect(self, share: Request) -> tuple[Response | asyncio.Future[Response], frozenset[ApiKey]]:
        """Handle a share and wait until its effects are complete. Returns the answer or its future, and the APIs that
        may overtake the request before the answer exists.
        """
        kind = self._kind
        reply = kind.handle(kind.context, share)
        if isinstance(reply, Response):
            return reply, NOTHING
        if isinstance(reply, Later | Waiting):
            answer = _response_of(reply) if isinstance(reply, Later) else reply.future
            if isinstance(reply, Waiting) and reply.effective is not None:
                await reply.effective
            if kind.route.api_key in reply.lets_pass:
                return answer, reply.lets_pass
            reply = answer
        response = None if reply is None else await reply
        if response is None:
            raise TypeError(f"a share of {kind.route.name} has no answer")
        return response, NOTHING

    def _mark_effective(self, lets_pass: frozenset[ApiKey], _: object = None) -> None:
        """Mark the effects as complete, so that requests of these APIs may overtake."""
        if not self.effective.done():
            self.waiting.lets_pass = lets_pass
            self.effective.set_result(None)

    def abandon(self, work: asyncio.Future[Reply], answer: asyncio.Future[Parts | None]) -> None:
        """Cancel the work for an answer that is no longer wanted, once its effects are complete or if it has none.
        Called for every answer.
        """
        if answer.cancelled():
            has_effects = self._is_decoded and not self._kind.route.reads_only
            abandon(work, self.effective if has_effects else None, answer)
        else:
            # An answer may be an error whose traceback refers to this object: a cycle that would keep all decoded data.
            del self.waiting


def abandon(
    work: asyncio.Future[Reply], effective: asyncio.Future[None] | None, answer: asyncio.Future[Parts | None]
) -> None:
    """Cancel the work for an answer that is no longer wanted, once its effects are complete."""
    if not answer.cancelled():
        return
    if effective is None or effective.done():
        work.cancel()
    else:
        effective.add_done_callback(lambda _: work.cancel())


def _response_of(later: Later[Any]) -> asyncio.Future[Response]:
    response: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
    later.then(lambda _, value: complete_future(response, later.response, value))
    return response


def _is_ready(answer: Response | asyncio.Future[Response]) -> bool:
    return isinstance(answer, Response) or answer.done()


async def _response(answer: Response | asyncio.Future[Response]) -> Response:
    return answer if isinstance(answer, Response) else await answer
