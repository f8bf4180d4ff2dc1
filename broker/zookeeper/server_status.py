"""The state of ZooKeeper servers as they report it (the command `srvr`, which every server allows).

A server that refuses a client closes the connection without a reason.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Sequence

logger = logging.getLogger("kafka.zookeeper.ZooKeeperClient")

_ANSWER_TIMEOUT_S = 1.0
_MOST_BYTES = 1 << 16
_OLDER_DATA = "its data are older than they were"


class Refusals:
    """Finds out why the servers of an ensemble refuse a session. `set_back` is called when, for two intervals, all
    answering servers have had older data than the session has seen.
    """

    def __init__(self, servers: Sequence[tuple[str, int]], set_back: Callable[[], Awaitable[None]]) -> None:
        self._servers = servers
        self._set_back = set_back
        self._explaining: asyncio.Future[None] | None = None

    async def reason(self, *, seen_zxid: int) -> str:
        """The reasons of the servers that answer but would refuse a session whose client has seen `seen_zxid`, in one
        line; may be empty.
        """
        answers = await asyncio.gather(*[_ask(host, port) for host, port in self._servers])
        reasons = [(server, refusal(answer, seen_zxid)) for server, answer in zip(self._servers, answers, strict=True)]
        return "; ".join(f"{host}:{port} {reason}" for (host, port), reason in reasons if reason)

    def explain(self, seen_zxid: Callable[[], int], interval_s: float) -> None:
        """Log the reason after `interval_s`, and again whenever it changes, until `stop`."""
        self.stop()
        self._explaining = asyncio.ensure_future(self._explain(seen_zxid, interval_s))

    async def _explain(self, seen_zxid: Callable[[], int], interval_s: float) -> None:
        told = ""
        while True:
            await asyncio.sleep(interval_s)
            reason = await self.reason(seen_zxid=seen_zxid())
            if reason and reason != told:
                logger.error("ZooKeeper refuses the session of this broker: %s", reason)
            elif reason and all(each.endswith(_OLDER_DATA) for each in reason.split("; ")):
                await self._set_back()
            told = reason

    def stop(self) -> None:
        """Stop, because the client is connected or the session is over."""
        if self._explaining is not None:
            self._explaining.cancel()
            self._explaining = None


def refusal(answer: str, seen_zxid: int) -> str:
    """The reason in an answer to `srvr`; empty for a server that would accept the session, or is not a ZooKeeper."""
    if "not currently serving requests" in answer:
        return "has no quorum"
    if "Mode: read-only" in answer:
        return "is read-only, as it has no quorum"
    zxid = re.search(r"^Zxid: 0x([0-9a-f]+)$", answer, re.MULTILINE)
    if zxid is None or int(zxid[1], 16) >= seen_zxid:
        return ""
    return f"is at zxid 0x{zxid[1]}, before 0x{seen_zxid:x}, which this broker has seen: {_OLDER_DATA}"


async def _ask(host: str, port: int) -> str:
    """The answer to `srvr`; empty if the server does not answer."""
    try:
        async with asyncio.timeout(_ANSWER_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                writer.write(b"srvr")
                answer = b""
                while len(answer) < _MOST_BYTES and (part := await reader.read(_MOST_BYTES)):
                    answer += part
                return answer.decode("utf-8", "replace")
            finally:
                writer.close()
    except OSError:  # TimeoutError too
        return ""
