"""Limits on TLS handshakes: how many may hold memory or use a thread, and how long one may take."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from environment.contract import Executor

if TYPE_CHECKING:
    from broker.network.tls_transport import TlsTransport

HANDSHAKE_S: Final = 10.0
"""Time limit of a handshake, from the admission of its connection."""
MOST_STALLED: Final = 256
"""Handshakes that may wait for their peers at once. OpenSSL holds some 60 kB for each."""
MOST_STEPS: Final = 2
"""Handshake steps that run at once; the other threads stay free for the disks."""

Peers = tuple[str, str]
"""A listener and an address; all peers with the same pair share their limits."""
_Step = tuple[Callable[[], None], Callable[[asyncio.Future[None]], None]]


class Handshakes:
    """Shares memory and threads among handshakes.

    A handshake that waits for its peer does not block others. When too many wait, the oldest one of the peer group with
    the most is ended. Steps run off the event loop. Peer groups take turns, so that one address cannot delay the others
    with many handshakes.
    """

    def __init__(self, executor: Executor, most_stalled: int = MOST_STALLED) -> None:
        self._executor = executor
        self._most_stalled = most_stalled
        self._stalled: dict[Peers, dict[TlsTransport, None]] = {}
        self._count = 0
        self._steps: dict[Peers, dict[TlsTransport, _Step]] = {}
        """The step of each handshake that waits for a thread, by peer group in turn order."""
        self._running = 0

    def wait_for_peer(self, handshake: TlsTransport, peers: Peers) -> None:
        """Count `handshake`, which belongs to the peer group `peers`, until `leave`."""
        self._stalled.setdefault(peers, {})[handshake] = None
        self._count += 1
        if self._count > self._most_stalled:
            most = max(self._stalled, key=lambda each: len(self._stalled[each]))
            oldest = next(iter(self._stalled[most]))
            self.leave(oldest, most)
            oldest.make_room()

    def leave(self, handshake: TlsTransport, peers: Peers) -> None:
        """Remove the handshake from both queues: it waits neither for its peer nor for a thread."""
        steps = self._steps.get(peers, {})
        if steps.pop(handshake, None) is not None and not steps:
            del self._steps[peers]
        stalled = self._stalled.get(peers, {})
        if handshake in stalled:
            del stalled[handshake]
            self._count -= 1
            if not stalled:
                del self._stalled[peers]

    def run(
        self,
        handshake: TlsTransport,
        peers: Peers,
        step: Callable[[], None],
        done: Callable[[asyncio.Future[None]], None],
    ) -> None:
        """Run `step` on a thread when its turn comes, then `done` on the event loop; neither runs after `leave`."""
        self._steps.setdefault(peers, {})[handshake] = (step, done)
        self._run_next()

    def _run_next(self) -> None:
        while self._steps and self._running < MOST_STEPS:
            peers = next(iter(self._steps))
            steps = self._steps.pop(peers)
            step, done = steps.pop(next(iter(steps)))
            if steps:
                self._steps[peers] = steps
            self._running += 1
            future = asyncio.ensure_future(self._executor.run(step))
            future.add_done_callback(self._on_step)
            future.add_done_callback(done)

    def _on_step(self, _: asyncio.Future[None]) -> None:
        self._running -= 1
        self._run_next()
