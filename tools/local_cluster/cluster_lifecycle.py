"""Starts and stops the processes of a cluster, and adds brokers.

It writes `cluster.json` after each process that it starts, so that the next command knows every process even if this
one is interrupted.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial
from pathlib import Path

from tools.local_cluster.cluster_directory import (
    HOST,
    ZOOKEEPER,
    ClusterDirectory,
    ClusterSecurity,
    ClusterState,
    LocalBroker,
    LocalZooKeeper,
)
from tools.local_cluster.cluster_probe import Probe
from tools.local_cluster.cluster_processes import Condition, ProcessId, observe, send_signal, spawn, wait_for_end
from tools.local_cluster.cluster_secrets import ClusterSecrets, write_client_files
from tools.local_cluster.process_commands import (
    ProcessCommand,
    broker_command,
    broker_properties,
    run,
    tree_command,
    users_command,
    zookeeper_command,
    zookeeper_properties,
)
from tools.support.common import ToolError

_LAST = 65_535


def is_free(port: int) -> bool:
    """Whether a server could listen on this port now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True


def require_free(port: int, whose: str) -> None:
    """Raise ToolError if something listens on the port."""
    if not is_free(port):
        raise ToolError(f"port {port}, which is for {whose}, is in use; stop what listens there, or use --base-port")


def free_from(port: int) -> int:
    """The first free port at or above this one. Raises ToolError if all are taken."""
    for candidate in range(port, _LAST + 1):
        if is_free(candidate):
            return candidate
    raise ToolError(f"no port from {port} up is free")


def is_serving(host: str, port: int, timeout_s: float = 1.0) -> bool:
    """Whether a ZooKeeper serves clients at this address (by its command `srvr`, which is always allowed)."""
    with contextlib.suppress(OSError), socket.create_connection((host, port), timeout_s) as connection:
        connection.sendall(b"srvr")
        answer = b""
        while part := connection.recv(4096):
            answer += part
        return b"Mode:" in answer
    return False


async def accepts(host: str, port: int) -> bool:
    """Whether something accepts connections at this address."""
    try:
        _, writer = await asyncio.wait_for(asyncio.open_connection(host, port), timeout=1)
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True


START_TIMEOUT_S = 60
STOP_TIMEOUT_S = 60
"""Twice as long as a broker takes to stop without its coordination service."""
KILL_TIMEOUT_S = 10
ZOOKEEPER_PORT = 2181
_POLL_S = 0.02
_SAID_LINES = 5
"""How many lines of output to show for a process that has ended."""


class ClusterLifecycle:
    """Changes one cluster. `tell` is called with a line about each step."""

    def __init__(self, directory: ClusterDirectory, tell: Callable[[str], None]) -> None:
        self._directory = directory
        self._tell = tell
        self._state = directory.load()

    @classmethod
    def make(
        cls,
        directory: ClusterDirectory,
        tell: Callable[[str], None],
        *,
        brokers: int,
        base_port: int,
        zookeeper: str | None,
        is_embedded: bool,
        settings: Mapping[str, str],
        security: ClusterSecurity,
    ) -> ClusterLifecycle:
        """A new cluster in `directory`, not started yet, with the given ZooKeeper, its own ZooKeeper or the embedded
        tree. Raises ToolError if a port is in use, if no ZooKeeper can be started, or for unusable configuration keys.
        """
        ports = range(base_port, base_port + brokers)
        for number, port in enumerate(ports, 1):
            require_free(port, f"broker {number}")
        if zookeeper is None:
            port = ZOOKEEPER_PORT if is_free(ZOOKEEPER_PORT) else free_from(base_port + 1000)
            service = LocalZooKeeper(f"{HOST}:{port}", port, is_embedded=is_embedded)
            directory.write_properties(ZOOKEEPER, zookeeper_properties(directory, port))
            _coordination_command(service, directory)
        else:
            service = LocalZooKeeper(zookeeper)
        members = tuple(LocalBroker(number, port) for number, port in enumerate(ports, 1))
        state = ClusterState(service, members, settings, security)
        secrets = ClusterSecrets(directory, security)
        secrets.make()
        for broker in members:
            secrets.issue(broker.broker_id)
            directory.write_properties(broker.broker_id, broker_properties(directory, state, broker))
        directory.save(state)
        return cls(directory, tell)

    @property
    def state(self) -> ClusterState:
        """The cluster as last saved."""
        return self._state

    @property
    def _secrets(self) -> ClusterSecrets:
        return ClusterSecrets(self._directory, self._state.security)

    def _save(self, state: ClusterState) -> None:
        self._state = state
        self._directory.save(state)

    # -- starting ------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start whatever is not running, and wait until every broker is registered and answers.

        Raises ToolError if everything runs already, or if a process ends or is not ready in time.
        """
        dead = [each for each in self._state.brokers if observe(each.process).condition is Condition.DEAD]
        if not dead and not self._lacks_zookeeper:
            raise ToolError(f"the cluster in {self._directory.path} is already running")
        await self._start_zookeeper()
        for broker in dead:
            require_free(broker.port, f"broker {broker.broker_id}")
        if dead and self._state.security.is_scram:
            await self._make_users()
        write_client_files(self._directory, self._state)
        for broker in dead:
            self._spawn(broker)
        await self._await_registered({broker.broker_id for broker in dead})

    async def add(self) -> LocalBroker:
        """Start one more broker, and return it once it is registered. Raises ToolError."""
        if self._lacks_zookeeper:
            raise ToolError(f"the cluster does not run; `{self._directory.command('start')}` starts it")
        last = self._state.brokers[-1]
        port = free_from(max(each.port for each in self._state.brokers) + 1)
        broker = LocalBroker(last.broker_id + 1, port)
        before, state = self._state, self._state.with_broker(broker)
        self._secrets.issue(broker.broker_id)
        self._directory.write_properties(broker.broker_id, broker_properties(self._directory, before, broker))
        self._save(state)
        try:
            self._spawn(broker)
            await self._await_registered({broker.broker_id})
        except BaseException:
            name = broker.broker_id
            await self._end(f"broker {name}", self._state.broker(name).process)
            self._save(before)
            raise
        write_client_files(self._directory, self._state)
        return self._state.broker(broker.broker_id)

    @property
    def _lacks_zookeeper(self) -> bool:
        """Whether the cluster has its own ZooKeeper, and that one is dead."""
        service = self._state.zookeeper
        return service.port is not None and observe(service.process).condition is Condition.DEAD

    async def _start_zookeeper(self) -> None:
        service = self._state.zookeeper
        port = service.port
        if port is None:
            await self._await_given_zookeeper()
            return
        if not self._lacks_zookeeper:
            return
        require_free(port, service.title)
        process = self._launch(ZOOKEEPER, _coordination_command(service, self._directory))
        self._save(self._state.with_zookeeper(LocalZooKeeper(service.connect, port, process, service.is_embedded)))
        self._tell(f"starting {service.title} on {service.connect}")
        await self._await_ready(service.title, ZOOKEEPER, process, partial(asyncio.to_thread, is_serving, HOST, port))

    async def _await_given_zookeeper(self) -> None:
        """Raise ToolError if no server of `--zookeeper` accepts connections."""
        connect = self._state.zookeeper.connect
        for server in connect.partition("/")[0].split(","):
            host, _, port = server.strip().rpartition(":")
            with contextlib.suppress(socket.gaierror):
                if await accepts(host, int(port)):
                    return
        raise ToolError(f"no ZooKeeper answers at {connect}")

    async def _make_users(self) -> None:
        """Raise ToolError if a user exists with another password, or cannot be created."""
        properties = self._directory.properties_file(self._state.brokers[0].broker_id)
        code, said = await run(users_command(properties, self._secrets.users_file))
        if code:
            raise ToolError(f"cannot create the users of the brokers: {said}")

    def _spawn(self, broker: LocalBroker) -> None:
        process = self._launch(broker.broker_id, broker_command(self._directory.properties_file(broker.broker_id)))
        self._save(self._state.with_broker(LocalBroker(broker.broker_id, broker.port, process)))
        self._tell(f"starting broker {broker.broker_id} on {broker.address}")

    def _launch(self, name: str | int, command: ProcessCommand) -> ProcessId:
        return spawn(command.words, self._directory.output_file(name), command.environment)

    async def _await_registered(self, started: Collection[int]) -> None:
        """Wait until all running brokers, including the `started` ones, know each other."""
        running = [
            broker
            for broker in self._state.brokers
            if broker.broker_id in started or observe(broker.process).condition is Condition.RUNNING
        ]
        members = [broker.broker_id for broker in running]
        security = self._secrets.client_properties()
        for broker in running:
            name = broker.broker_id
            async with Probe(broker.address, security) as probe:
                await self._await_ready(f"broker {name}", name, broker.process, partial(probe.knows, members))

    async def _await_ready(
        self, what: str, name: str | int, process: ProcessId | None, is_ready: Callable[[], Awaitable[bool]]
    ) -> None:
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                while not await is_ready():
                    if observe(process).condition is Condition.DEAD:
                        raise ToolError(f"{what} has ended; {self._last_words(name)}")
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            raise ToolError(f"{what} is not ready after {START_TIMEOUT_S} s; {self._last_words(name)}") from None

    def _last_words(self, name: str | int) -> str:
        files = (self._directory.log_file(name), self._directory.output_file(name))
        said = [file for file in files if file.exists() and file.stat().st_size]
        if not said:
            return "it logged nothing"
        newest = max(said, key=lambda file: file.stat().st_mtime_ns)
        return f"{newest} says\n{last_lines(newest)}"

    # -- stopping ------------------------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Stop the brokers one after the other, so that they hand over their partitions, then ZooKeeper. Processes that
        do not end in time are killed. Raises ToolError if one cannot be killed.
        """
        for broker in self._state.brokers:
            await self._end(f"broker {broker.broker_id}", broker.process)
        await self._end(self._state.zookeeper.title, self._state.zookeeper.process)

    async def _end(self, what: str, process: ProcessId | None) -> None:
        if not send_signal(process, signal.SIGTERM):
            return
        # A paused process handles the signal when it resumes.
        send_signal(process, signal.SIGCONT)
        self._tell(f"stopping {what}")
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await wait_for_end(process)
        except TimeoutError:
            self._tell(f"{what} has not ended after {STOP_TIMEOUT_S} s; killing it")
            send_signal(process, signal.SIGKILL)
            try:
                async with asyncio.timeout(KILL_TIMEOUT_S):
                    await wait_for_end(process)
            except TimeoutError:
                raise ToolError(f"{what} cannot be killed; it may be waiting for a disk") from None


def _coordination_command(service: LocalZooKeeper, directory: ClusterDirectory) -> ProcessCommand:
    command = tree_command if service.is_embedded else zookeeper_command
    return command(directory.properties_file(ZOOKEEPER))


def last_lines(path: Path) -> str:
    """The end of a log file, indented."""
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()[-_SAID_LINES:]
    return "\n".join(f"  {line}" for line in lines)
