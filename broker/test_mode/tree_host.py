"""The process that serves the ZooKeeper tree of a cluster under test.

Each broker connects to a separate port, which identifies the broker. Faults between brokers and tree are set here,
because kazoo's sockets cannot be intercepted. The process has a control API, as brokers have:

| request | answer |
|---|---|
| `POST /v1/ports` | opens another port; returns `port` |
| `POST /v1/network` | replaces the faults of the accepted connections: `links`, see `cut_network` |
| `POST /v1/sessions` | ends the sessions of the brokers `ended` now, and those of `silent` when they have been silent |
| `POST /v1/snapshots` | writes a snapshot of the tree to `directory`, see `snapshots` |

A test knows which brokers it has killed, paused or cut off. Their sessions end at once, or after `SILENCE_S`, as if
zookeeper.session.timeout.ms had passed. So that time-out can be so long that a busy machine does not reach it.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import Final

from broker.test_mode.api_description import checked
from broker.test_mode.cluster_requests import NETWORK
from broker.test_mode.cut_network import CutConnection, Link, Links, WrappedNetwork
from broker.test_mode.http_connection import HttpConnection, HttpError, HttpRequest
from broker.test_mode.snapshots import meeting, write_tree_snapshot
from cluster.znodes import broker_path
from environment.contract import Listener, Network
from environment.process_signals import handle_signals
from environment.system import SystemClock, SystemRandom, TcpNetwork, ThreadExecutor, room_for_connections
from storage.io.os_file_system import OsFileSystem
from zookeeper.commit_queue import CommitResult
from zookeeper.tree_server import TreeServer, TreeServerConfig, open_tree_server

logger = logging.getLogger("odradek.coordination")

SILENCE_S: Final = 0.5
"""How long a broker that is known to be silent keeps its session."""
_BACKLOG: Final = 50
_LEAST_TIMEOUT_MS, _MOST_TIMEOUT_MS = 100, 600_000
_LOOPBACK: Final = "127.0.0.1"


class BrokerPorts(WrappedNetwork):
    """The network of the tree's server. Its one listener has no port until `open` adds some."""

    def __init__(self, network: Network, links: Links) -> None:
        super().__init__(network)
        self._links = links
        self._listener = PortListener()

    def bind(self, host: str | None, port: int) -> Listener:  # noqa: ARG002 - brokers get ports of their own
        return self._listener

    async def open(self) -> int:
        """Accept connections on another port; returns it."""
        listener = self._network.bind(_LOOPBACK, 0)
        await listener.start(self._new_connection)
        self._listener.opened.append(listener)
        return listener.port

    def _new_connection(self) -> CutConnection:
        return CutConnection(self._listener.protocol_factory(), self._links)


class PortListener(Listener):
    """Several ports as one listener."""

    port = 0

    def __init__(self) -> None:
        self.opened: list[Listener] = []
        self.protocol_factory: Callable[[], asyncio.BaseProtocol]

    def listen(self) -> None:
        """Each port listens when it is opened."""

    async def start(self, protocol_factory: Callable[[], asyncio.BaseProtocol]) -> None:
        self.protocol_factory = protocol_factory

    async def close(self) -> None:
        for listener in self.opened:
            await listener.close()


class SilentBrokers:
    """Ends the sessions of brokers that are known to be gone or silent."""

    def __init__(self, server: TreeServer) -> None:
        self._server = server
        self._timers: dict[int, asyncio.TimerHandle] = {}

    def change(self, silent: Iterable[int], after_s: float) -> None:
        """From now on these brokers are silent, and no others are."""
        names = set(silent)
        for broker_id in set(self._timers) - names:
            self._timers.pop(broker_id).cancel()
        for broker_id in names - set(self._timers):
            loop = asyncio.get_running_loop()
            self._timers[broker_id] = loop.call_later(after_s, self.end, broker_id)

    def end(self, broker_id: int) -> None:
        """End the session that holds a broker's registration, if any."""
        tree, path = self._server.queue.tree, broker_path(broker_id)
        if tree.exists(path) is not None:
            self._server.sessions.expire(tree.get(path)[1].ephemeral_owner)


class TreeControl:
    """Serves the control API of the tree."""

    def __init__(
        self, server: TreeServer, ports: BrokerPorts, links: Links, token: str, file_system: OsFileSystem
    ) -> None:
        self._server = server
        self._file_system = file_system
        self._ports = ports
        self._links = links
        self._silent = SilentBrokers(server)
        self._token = token
        self._listening: asyncio.Server | None = None

    async def start(self) -> int:
        """Listen on a free port of the loopback interface; returns the port."""
        loop = asyncio.get_running_loop()
        self._listening = await loop.create_server(lambda: HttpConnection(self._handle, self._token), _LOOPBACK, 0)
        port: int = self._listening.sockets[0].getsockname()[1]
        return port

    async def _handle(self, request: HttpRequest) -> object:
        body = request.body
        match request.method, request.path:
            case "POST", ("v1", "ports"):
                return {"port": await self._ports.open()}
            case "POST", ("v1", "network"):
                self._links.change([Link.of(each) for each in checked(body, NETWORK)["links"]])
                return {}
            case "POST", ("v1", "sessions"):
                for broker_id in body.get("ended", []):
                    self._silent.end(broker_id)
                self._silent.change(body.get("silent", []), body.get("after_ms", SILENCE_S * 1000) / 1000)
                return {}
            case "POST", ("v1", "snapshots"):
                await self._take_snapshot(body["directory"], meeting(body["meeting"], body["processes"]))
                return {}
        raise HttpError(HTTPStatus.NOT_FOUND, f"no {request.method} /{'/'.join(request.path)}")

    async def _take_snapshot(self, directory: str, meet: Callable[[], None]) -> None:
        queue, taken = self._server.queue, asyncio.get_running_loop().create_future()

        def done(outcome: CommitResult) -> None:
            if outcome.error is None:
                taken.set_result(None)
            else:
                taken.set_exception(outcome.error)

        queue.read(lambda: write_tree_snapshot(queue.tree, self._file_system, directory, meet), done)
        await taken


async def serve_tree(directory: str, port_count: int, token: str, announce: Callable[[str], None]) -> int:
    """Serve until a stop signal. `announce` gets the ports of the brokers and of the control API, as JSON."""
    links, stop = Links(), asyncio.Event()
    ports, file_system = BrokerPorts(TcpNetwork(_BACKLOG), links), OsFileSystem()
    handle_signals(stop.set)

    def fail(error: OSError) -> None:
        logger.critical("The journal failed: %s", error)
        stop.set()

    server = await open_tree_server(
        TreeServerConfig(directory, _LOOPBACK, 0, _LEAST_TIMEOUT_MS, _MOST_TIMEOUT_MS, most_of_address=0),
        network=ports,
        file_system=file_system,
        executor=ThreadExecutor(1),
        clock=SystemClock(),
        random=SystemRandom(),
        passwords=None,
        most_connections=room_for_connections(file_system.max_open_files),
        on_failure=fail,
    )
    await server.start()
    # These belong to the brokers in the snapshot. The brokers that start from it open their own sessions.
    for session_id in list(server.queue.tree.resumable):
        server.sessions.expire(session_id)
    opened = [await ports.open() for _ in range(port_count)]
    control = TreeControl(server, ports, links, token, file_system)
    announce(json.dumps({"ports": opened, "control": await control.start()}))
    await stop.wait()
    await server.close()
    return 0
