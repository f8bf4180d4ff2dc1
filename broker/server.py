"""KafkaServer: starts a broker in stages (`broker.stages`), and stops it in reverse.

Startup: bind the addresses -> lock the log directories -> open coordination -> load the logs, each with its topic's
configuration -> listen -> register, lead -> serve. The broker writes nothing before it knows that the addresses are
free and the log directories belong to it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeVar

from broker.broker_environment import Environment
from broker.logs.directory_failures import DirectoryFailures
from broker.network.connection import Connection, Dispatch
from broker.network.limits import ConnectionLimits, ConnectionRates
from broker.network.memory import MAX_UNREAD_REPLY_BYTES, RequestMemory
from broker.network.socket_server import SocketServer
from broker.stages.cluster_member import ClusterMember
from broker.stages.coordination import OpenCoordination
from broker.stages.directories import LockedDirectories
from broker.stages.dynamic_listeners import DynamicListenerConfig
from broker.stages.logs import LoadedLogs
from broker.stages.serving import ServingBroker, window_of_quotas
from broker.zookeeper.kafka_zk_client import ClusterError
from cluster import znodes
from config.broker_config import BrokerConfig
from config.definitions import ConfigError, ConfigRuleError
from config.rules import too_old_protocol
from protocol.errors import ApiError
from storage.directory.meta_properties import LogDirError
from zookeeper.coordination import CoordinationError
from zookeeper.durable_tree import JournalError

if TYPE_CHECKING:
    from broker.observability.metrics import MetricsServer
    from broker.security.scram_credentials import ScramCredentials
    from security.sasl_exchange import ScramCredential, TokenCredential

D = TypeVar("D", bound=Dispatch)

logger = logging.getLogger("kafka.server.KafkaServer")

MEMORY_FOR_REQUESTS = 4
"""The divisor for the share of memory for requests that arrive in pieces: a quarter."""
MEMORY_FOR_REPLIES = 8
"""The divisor for replies that clients have not read."""
IDLE_BYTES = 40 << 20
"""Memory of an idle broker; the rest of a small memory is for requests."""
REQUEST_TIMES = 10
"""Memory of a large request and its answer, as a multiple of its bytes (9: Metadata of a hundred thousand topics)."""
CONTACT_PATIENCE_S = 5.0
"""How long shutdown waits for a tree that does not answer."""

_REASONS_NOT_TO_START = (
    OSError,
    LogDirError,
    ClusterError,
    JournalError,
    CoordinationError,
    znodes.ZnodeFormatError,
    ApiError,
    ConfigError,
)


class StartupError(Exception):
    """The broker cannot start; the message is one line with the reason."""


def _reason(error: Exception) -> str:
    """The message of `error`, without the error number of an OSError."""
    if not isinstance(error, OSError) or not error.strerror:
        return str(error)
    return error.strerror if error.filename is None else f"{error.strerror}: {error.filename}"


class KafkaServer:
    """One broker. `failed` is set when it cannot continue (its coordination journal or all its disks are gone)."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        environment: Environment,
        launched_s: float | None = None,
    ) -> None:
        """`launched_s` is the time of the process start, on the environment's monotonic clock."""
        self._config = config
        self._environment = environment
        self._launched_s = environment.clock.monotonic_s() if launched_s is None else launched_s
        self.failed = asyncio.Event()
        self._max_request_bytes = max_request_bytes(config, environment.memory_bytes)
        connection_limits = ConnectionLimits(
            config.max_connections,
            config.max_connections_per_ip,
            config.max_connections_per_ip_overrides,
            environment.most_connections,
            config.max_connections_per_listener,
        )
        self._socket_server = SocketServer(
            environment.network,
            environment.executor,
            environment.clock,
            connection_limits,
            RequestMemory(_request_memory_bytes(config, environment, self._max_request_bytes)),
            max_request_bytes=self._max_request_bytes,
            max_idle_ms=config.connections_max_idle_ms,
            max_unread_reply_bytes=_reply_memory_bytes(environment),
            on_read_error=self._reading_failed,
            rates=ConnectionRates(environment.clock, window_of_quotas(config)),
        )
        self.metrics_server: MetricsServer | None = None
        self._directories: LockedDirectories | None = None
        self._coordination: OpenCoordination | None = None
        self._scram_credentials: ScramCredentials | None = None
        self._serving: ServingBroker | None = None
        self._listeners = DynamicListenerConfig(
            config, environment, self._socket_server, self._scram_credential, self._token_credential
        )

    @property
    def ports(self) -> dict[str, int]:
        """The bound port of each listener."""
        return self._socket_server.ports

    @property
    def serving(self) -> ServingBroker:
        """The parts of the broker, once it has started."""
        assert self._serving is not None, "the broker has not started"
        return self._serving

    def connections(self) -> Iterable[Connection]:
        """The open connections of clients."""
        return self._socket_server.connections

    def intercept(self, stand_before: Callable[[Dispatch], D]) -> D:
        """Put something between the connections that are accepted from now on and the dispatcher."""
        assert self._socket_server.dispatcher is not None, "the broker has not started"
        self._socket_server.dispatcher = interceptor = stand_before(self._socket_server.dispatcher)
        return interceptor

    # -- start ---------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start serving. Raises StartupError with one line that gives the reason; call `abandon` then."""
        try:
            self._serving = serving = await self._open()
            await serving.start(self._config, self._socket_server, self.metrics_server)
            self._listeners.serve(serving)
        except _REASONS_NOT_TO_START as error:
            raise StartupError(_reason(error)) from error
        milliseconds = (self._environment.clock.monotonic_s() - self._launched_s) * 1000
        broker_id = serving.directories.identity.broker_id
        if self._config.single_node is not None:  # Scripts for KRaft wait for these lines.
            logger.info("The broker has been unfenced. Transitioning from RECOVERY to RUNNING.")
            logger.info("[KafkaRaftServer nodeId=%d] Kafka Server started", broker_id)
        logger.info("[KafkaServer id=%d] started (%.0f ms)", broker_id, milliseconds)

    async def _open(self) -> ServingBroker:
        """Go through all stages except serving."""
        config, environment = self._config, self._environment
        if self._max_request_bytes < config.socket_request_max_bytes:
            logger.warning(
                "Refusing requests of more than %d bytes, although socket.request.max.bytes is %d: this process may "
                "use %s bytes of memory (a limit of its cgroup, its container or ulimit)",
                self._max_request_bytes,
                config.socket_request_max_bytes,
                environment.memory_bytes,
            )
        await self._listeners.bind()
        if config.metrics_listener:
            from broker.observability.metrics import MetricsServer

            self.metrics_server = MetricsServer(config.metrics_listener)
        failures = DirectoryFailures(self.failed)
        self._directories = directories = LockedDirectories.lock(config, environment, failures)
        self._coordination = coordination = await OpenCoordination.open(
            config,
            environment,
            directories.identity,
            on_journal_failure=self._journal_failed,
            on_lost=self._membership_lost,
        )
        self._directories = directories = directories.replace(identity=coordination.identity)
        await self._check_protocol_version(coordination)
        await self._listeners.bind_as(coordination.configs.current)
        coordination.configs.on_change(self._limit_connections)
        self._limit_connections(coordination.configs.current)
        logs = await LoadedLogs.load(environment, directories, coordination)
        registration = znodes.BrokerRegistration(
            directories.identity.broker_id, self._listeners.endpoints(), config.broker_rack
        )
        if coordination.membership.is_shared:
            tracks_eligible = config.eligible_leader_replicas_enable
            registration = registration.replace(
                truncated_replicas=logs.log_manager.checkpoints.truncated_replicas(),
                previous_epoch=logs.report.broker_epoch if tracks_eligible else None,
            )
        # As soon as this broker is registered, others connect to it.
        self._socket_server.listen()
        member = await ClusterMember.join(config, environment, directories, coordination, logs, registration)
        return ServingBroker.of(config, environment, directories, coordination, logs, member)

    async def _check_protocol_version(self, coordination: OpenCoordination) -> None:
        """Raise ConfigRuleError if there are other brokers: they might need older requests than this one sends."""
        too_old = too_old_protocol(self._config.values)
        if too_old is None:
            return
        tree, path = coordination.membership.coordination, znodes.BROKER_IDS
        registered = (await tree.children(path))[0] if await tree.exists(path) else []
        others = sorted({*registered} - {str(coordination.identity.broker_id)})
        if others:
            version = self._config.values["inter.broker.protocol.version"]
            message = f"{too_old} (other brokers: {', '.join(others)})"
            raise ConfigRuleError("inter.broker.protocol.version", version, message)
        logger.warning("No other broker is there that would need it: %s", too_old)

    async def _scram_credential(self, user: str, mechanism: str) -> ScramCredential:
        """See `ScramCredentials.find`."""
        if self._scram_credentials is None:
            from broker.security.scram_credentials import ScramCredentials

            assert self._coordination is not None, "nobody is served before there is a tree"
            membership, metadata = self._coordination.membership, self._coordination.metadata
            self._scram_credentials = ScramCredentials(membership, metadata, self._environment.random)
        return await self._scram_credentials.find(user, mechanism)

    async def _token_credential(self, token_id: str, mechanism: str) -> TokenCredential | None:
        """A delegation token, or None. Raises CoordinationError, ZnodeFormatError."""
        tokens = self.serving.member.delegation_tokens
        return None if tokens is None else await tokens.credential(token_id, mechanism)

    # -- stop ----------------------------------------------------------------------------------------------------------

    async def shutdown(self) -> None:
        """Stop serving, flush everything, write the markers of a clean shutdown. Call it only after `start`."""
        serving = self.serving
        broker_id = serving.directories.identity.broker_id
        logger.info("[KafkaServer id=%d] shutting down", broker_id)
        membership = serving.coordination.membership
        without_contact = asyncio.create_task(membership.without_contact(CONTACT_PATIENCE_S))
        await serving.member.hand_over(self._config, serving.coordination.metadata, without_contact)
        ending = asyncio.create_task(self._end_session_after(without_contact))
        try:
            await self._stop(serving)
        finally:
            ending.cancel()
            without_contact.cancel()
        await serving.coordination.close(has_failed=self.failed.is_set())
        self._environment.executor.close()
        logger.info("[KafkaServer id=%d] shut down completed", broker_id)

    async def _stop(self, serving: ServingBroker) -> None:
        """Stop all users of the tree, and close the logs."""
        await self._listeners.close()
        await serving.stop(self._socket_server)
        if self.metrics_server is not None:
            self.metrics_server.close()
        await serving.member.close()
        threads, broker_epoch = self._config.num_recovery_threads_per_data_dir, serving.coordination.fence.broker_epoch
        await serving.logs.close(self._environment, threads, broker_epoch)
        if not self.failed.is_set():
            await serving.member.controller.close()

    async def _end_session_after(self, without_contact: asyncio.Task[None]) -> None:
        """End the session with an unreachable tree, so that no call waits for it any longer. The tree ends the session
        on its side after zookeeper.session.timeout.ms of silence.
        """
        await without_contact
        logger.warning("Stopping without contact to ZooKeeper: the session ends when it times out")
        await self.serving.coordination.membership.close()

    async def abandon(self) -> None:
        """Abandon a failed start: release addresses and locks, write nothing."""
        await self._socket_server.stop_listening()
        if self.metrics_server is not None:
            self.metrics_server.close()
        if self._serving is not None:
            await self._serving.supervisor.stop()
        if self._coordination is not None:
            await self._coordination.abandon()
        if self._directories is not None:
            self._directories.release()
        self._environment.executor.close()

    # -- events --------------------------------------------------------------------------------------------------------

    def _limit_connections(self, config: BrokerConfig) -> None:
        self._socket_server.limits.change(
            config.max_connections,
            config.max_connections_per_ip,
            config.max_connections_per_ip_overrides,
            config.max_connections_per_listener,
        )
        has_others = len(config.listeners) > 1
        self._socket_server.rates.change(
            config.max_connection_creation_rate,
            config.max_connection_creation_rate_per_listener,
            config.inter_broker_listener_name if has_others else None,
        )

    def _reading_failed(self, path: str, error: OSError) -> None:
        if self._directories is not None:
            self._directories.log_manager.reading_failed(path, error)

    def _membership_lost(self, reason: str) -> None:
        if not self.failed.is_set():
            logger.critical("This broker is no longer a member of the cluster and stops: %s", reason)
            self.failed.set()

    def _journal_failed(self, error: OSError) -> None:
        logger.critical("The coordination journal failed; the broker stops: %s", error)
        self.failed.set()


def max_request_bytes(config: BrokerConfig, memory_bytes: int | None) -> int:
    """socket.request.max.bytes, or less if one such request could exceed the available memory. A request with a record
    of message.max.bytes always fits.
    """
    if memory_bytes is None:
        return config.socket_request_max_bytes
    one_record = config.topic_defaults()["max.message.bytes"]
    assert isinstance(one_record, int)
    return min(config.socket_request_max_bytes, max((memory_bytes - IDLE_BYTES) // REQUEST_TIMES, 2 * one_record))


def _request_memory_bytes(config: BrokerConfig, environment: Environment, largest_bytes: int) -> int:
    """Bytes that all requests arriving in pieces may hold, at least one of the largest; -1 for no limit."""
    if config.queued_max_request_bytes >= 0 or environment.memory_bytes is None:
        return config.queued_max_request_bytes
    return max(environment.share_of_memory(MEMORY_FOR_REQUESTS), largest_bytes)


def _reply_memory_bytes(environment: Environment) -> int:
    """Bytes that all replies unread by their clients may hold."""
    if environment.memory_bytes is None:
        return MAX_UNREAD_REPLY_BYTES
    return min(MAX_UNREAD_REPLY_BYTES, environment.share_of_memory(MEMORY_FOR_REPLIES))
