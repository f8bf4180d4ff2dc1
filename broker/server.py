"""KafkaServer: builds every owner of state, starts them in order, stops them in reverse.

Start: take the addresses -> load the logs -> open coordination -> register, lead -> serve. Nothing is written before
the addresses are known to be free and the log directories known to be ours.
"""

from __future__ import annotations

import asyncio
import logging

from storage.log_manager import LogManager

from broker.controller_service import ControllerService
from broker.controller_service import StartUpError as ClusterError
from broker.coordination.embedded import EmbeddedEnsemble
from broker.metrics import MetricsServer
from broker.network.limits import ConnectionLimits, RequestMemory
from broker.network.server import SocketServer
from broker.seams import Clock, Executor, Network, Random
from broker.supervisor import Supervisor
from broker.system import SystemClock, SystemRandom, TcpNetwork, ThreadExecutor
from cluster.coordination.embedded import JournalError
from config.broker_config import BrokerConfig
from storage.file_system import FileSystem, OsFileSystem

logger = logging.getLogger("kafka.server.KafkaServer")


class StartupError(Exception):
    """The broker cannot start; the message is the one line that says why."""


class KafkaServer:
    """One broker. `failed` is set when it must not go on (its coordination journal or all its disks are gone)."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        clock: Clock,
        random: Random,
        executor: Executor,
        network: Network,
        file_system: FileSystem,
    ) -> None:
        self._config = config
        self._clock = clock
        self._random = random
        self._executor = executor
        self._file_system = file_system
        self._started_s = clock.monotonic_s()
        self.failed = asyncio.Event()
        self._supervisor = Supervisor()
        self._socket_server = SocketServer(
            network,
            executor,
            ConnectionLimits(
                config.max_connections, config.max_connections_per_ip, config.max_connections_per_ip_overrides
            ),
            RequestMemory(config.queued_max_request_bytes),
            max_request_bytes=config.socket_request_max_bytes,
            max_idle_ms=config.connections_max_idle_ms,
        )
        self._log_manager: LogManager | None = None
        self._metrics_server: MetricsServer | None = None
        self._ensemble: EmbeddedEnsemble | None = None
        self._controller: ControllerService | None = None

    @classmethod
    def on_this_machine(cls, config: BrokerConfig) -> KafkaServer:
        """A broker on real clocks, disks, threads and sockets. Call it on the event loop."""
        return cls(
            config,
            clock=SystemClock(),
            random=SystemRandom(),
            executor=ThreadExecutor(config.num_io_threads),
            network=TcpNetwork(config.socket_listen_backlog_size),
            file_system=OsFileSystem(),
        )

    @property
    def ports(self) -> dict[str, int]:
        """The port each listener really has."""
        return self._socket_server.ports

    # -- start ---------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Serve. Raises StartupError with one line that says what is in the way; call `abandon` then."""
        try:
            await self._bind()
            log_manager = await self._load_logs()
            controller = await self._join(log_manager)
            await self._serve(log_manager, controller)
        except (OSError, ClusterError, JournalError) as error:
            raise StartupError(str(error)) from error
        milliseconds = (self._clock.monotonic_s() - self._started_s) * 1000
        logger.info("[KafkaServer id=%d] started (%.0f ms)", self._config.broker_id, milliseconds)
