"""This broker's membership of the cluster: its session, the cluster id and its registration."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial

from broker.broker_environment import Ensemble
from broker.zookeeper.kafka_zk_client import ClusterError, KafkaZkClient
from broker.zookeeper.topic_reader import DamagedNodes
from cluster import znodes
from cluster.controller.commands import CommandFence
from cluster.coordinators.deadlines import PAUSE_AFTER_BUG_MS
from cluster.metadata_image import BrokerImage, ConfigResource
from environment.contract import Clock, Random
from zookeeper.coordination import (
    ConnectionLossError,
    Coordination,
    CoordinationError,
    EventType,
    NodeExistsError,
    SessionExpiredError,
    SessionState,
    WatchEvent,
)

logger = logging.getLogger("kafka.zookeeper.ZooKeeperClient")

RETRY_S = 0.2
"""Pause between attempts to begin a session, or to repeat an operation that failed for lack of contact."""
PAUSE_AFTER_BUG_S = PAUSE_AFTER_BUG_MS / 1000


class ClusterMembership:
    """Owns the session. Every registration has an epoch; `fence` refuses commands meant for older registrations.

    When the session of a shared tree expires, a new one begins and the broker registers again, with a new epoch. By
    then it has given up everything it held under the old epoch, including leadership. If the tree is not shared, `lost`
    is called instead.
    """

    def __init__(
        self,
        ensemble: Ensemble,
        clock: Clock,
        random: Random,
        fence: CommandFence,
        on_lost: Callable[[str], None] = lambda _reason: None,
        *,
        session_timeout_ms: int = 0,
    ) -> None:
        """`on_lost` is called with the reason when only a restart can make this broker a member again."""
        self._ensemble = ensemble
        self.lost = on_lost
        self.clock = clock
        self._random = random
        self._fence = fence
        self._session_timeout_ms = session_timeout_ms
        self._is_leaving = False
        self._has_expired = False
        self._renewal: asyncio.Task[None] | None = None
        self._failure: str | None = None
        self._registration: znodes.BrokerRegistration | None = None
        self._cluster_id: str | None = None
        self._damaged = DamagedNodes()
        self._own_sessions: dict[int, None] = {}
        """Ids of all sessions of this process, to recognize the nodes that they created."""
        self._checks: dict[asyncio.Task[None], None] = {}
        """Pending checks of the registration, each started when its node changed."""
        self._at_end: list[Callable[[], None]] = []
        self._at_beginning: list[Callable[[BrokerImage], Awaitable[None]]] = []
        self._at_change: list[Callable[[BrokerImage], None]] = []
        self._changing_registration = asyncio.Lock()
        self.coordination: Coordination
        """The current session; replaced after it expires."""
        self.zk_client: KafkaZkClient
        self._take_session()

    @property
    def is_shared(self) -> bool:
        """Whether other brokers may use the same tree."""
        return self._ensemble.is_shared

    @property
    def broker_epoch(self) -> int:
        """The epoch of this broker's registration, or -1 before the first."""
        return self._fence.broker_epoch

    def _take_session(self) -> None:
        session = self.coordination = self._ensemble.session()
        session.add_session_listener(partial(self._session_changed, session))
        self.zk_client = KafkaZkClient(session, self.clock, self._damaged)
        self._has_expired = False

    def on_session_change(self, ended: Callable[[], None], began: Callable[[BrokerImage], Awaitable[None]]) -> None:
        """Call `ended()` when a session expires, and `began(broker)` once this broker has registered in the next one.
        Listeners are called in registration order. `began` may raise CoordinationError.
        """
        self._at_end.append(ended)
        self._at_beginning.append(began)

    def on_registration_change(self, changed: Callable[[BrokerImage], None]) -> None:
        """Call `changed(broker)` after this broker changes its registration within a session."""
        self._at_change.append(changed)

    # -- joining -------------------------------------------------------------------------------------------------------

    async def connect(self) -> Mapping[ConfigResource, Mapping[str, str]]:
        """Open the session; must come first. Returns all configurations, because loading the logs needs them."""
        await self._connect()
        return await self.zk_client.read_configs()

    async def _connect(self) -> None:
        await self.coordination.connect()
        self._own_sessions[self.coordination.session_id] = None
        if self._cluster_id is not None:
            # The address may now lead to another ensemble, or to one that has lost its data.
            await self._create_or_get(self._cluster_id, is_shared=True)
        await self.zk_client.create_missing(znodes.PERSISTENT_PATHS)

    async def create_or_get_cluster_id(self, known: str | None, *, is_shared: bool = False) -> str:
        """Return the cluster id, generating one for a new cluster. `known` is the id in meta.properties, if any. Raises
        ClusterError if the ids differ, or if a shared tree lacks one: then it belongs to another cluster.
        """
        await self._await_renewal()  # the session may have ended while the logs were loading
        return await self._create_or_get(known, is_shared=is_shared)

    async def _create_or_get(self, known: str | None, *, is_shared: bool) -> str:
        try:
            cluster_id = await self.zk_client.cluster_id()
        except znodes.ZnodeFormatError as error:
            if self._cluster_id is None:
                raise ClusterError(str(error)) from error
            self._damaged.report(error, "no broker can start")
            return self._cluster_id
        if cluster_id is None:
            if is_shared and known is not None:
                raise ClusterError(
                    f"zookeeper.connect names a place where no cluster is yet, and the log directories belong to the "
                    f"cluster {known} (meta.properties): check the servers and the chroot"
                )
            cluster_id = await self.zk_client.create_cluster_id(known or str(self._random.uuid()))
        if known is not None and known != cluster_id:
            raise ClusterError(
                f"Invalid cluster.id in: meta.properties. Expected {cluster_id}, but read {known}: "
                "the log directories belong to another cluster, or zookeeper.connect names the wrong one"
            )
        self._cluster_id = cluster_id
        return cluster_id

    async def register(self, registration: znodes.BrokerRegistration) -> BrokerImage:
        """Register this broker, in the next session if the current one ends first. From then on, commands to earlier
        registrations are refused. Raises ClusterError.
        """
        while True:
            await self._await_renewal()
            session = self.coordination
            try:
                broker = await self._register(registration)
            except SessionExpiredError:
                if not self.is_shared:
                    raise
                await asyncio.sleep(RETRY_S)
                continue
            if session is self.coordination and not self._has_expired:
                return broker

    async def _await_renewal(self) -> None:
        """If the session has ended, wait for the next. Raises ClusterError when there will never be one."""
        if self._renewal is not None:
            await asyncio.wait([self._renewal])
        if self._failure is not None:
            raise ClusterError(self._failure)

    async def _register(self, wanted: znodes.BrokerRegistration) -> BrokerImage:
        if wanted.previous_epoch is not None and self.broker_epoch >= 0:
            wanted = wanted.replace(previous_epoch=self.broker_epoch)
        registration = wanted.replace(timestamp_ms=self.clock.now_ms())
        try:
            epoch = await self.zk_client.register_broker(registration)
        except NodeExistsError:
            await self._wait_until_expired(registration)
            try:
                epoch = await self.zk_client.register_broker(registration)
            except NodeExistsError:
                raise _already_registered(registration) from None
        self._fence.registered(epoch)
        self._registration = wanted
        if self.is_shared:
            await self._keep_registered(self.coordination, registration.broker_id)
        return BrokerImage.of(registration, epoch)

    async def _keep_registered(self, session: Coordination, broker_id: int) -> None:
        """Watch the registration, and end a live session if somebody else deleted it: the next session registers again.
        Kafka's brokers keep running outside every ISR in that case.
        """

        def changed(event: WatchEvent) -> None:
            if event.type is not EventType.SESSION_EXPIRED and session is self.coordination and not self._is_leaving:
                task = asyncio.create_task(self._keep_registered(session, broker_id), name="keep-registered")
                self._checks[task] = None
                task.add_done_callback(self._checks.pop)

        path = znodes.broker_path(broker_id)
        with contextlib.suppress(CoordinationError):  # the session has ended, and with it the registration
            found = await session.exists(path, changed)
            if (found is None or found.ephemeral_owner != session.session_id) and not self._is_leaving:
                logger.error("%s was deleted by somebody else; a new session begins, to register again", path)
                await session.close()

    async def _wait_until_expired(self, registration: znodes.BrokerRegistration) -> None:
        """Remove a registration that an earlier session left behind (KAFKA-7165). A registration with the same
        endpoints is taken for one of an earlier process: wait, once, for its session to end. Raises ClusterError.
        """
        broker_id = registration.broker_id
        if await self.zk_client.delete_node_of(znodes.broker_path(broker_id), self._own_sessions):
            return
        if not self.is_shared:
            raise _already_registered(registration)
        gone = asyncio.Event()
        try:
            found = await self.zk_client.registration(broker_id, lambda _event: gone.set())
        except znodes.ZnodeFormatError as error:
            raise ClusterError(f"A broker is already registered with the id {broker_id}: {error}") from None
        if found is None:
            return
        if found.endpoints != registration.endpoints:
            raise _already_registered(found)
        # The ensemble checks for expired sessions once a tick, so a session may outlive its timeout.
        timeout_ms = self._session_timeout_ms * 3 // 2
        logger.info("Broker id %d is registered by another session; it is given %d ms to end", broker_id, timeout_ms)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(gone.wait(), timeout_ms / 1000)

    async def publish_truncated_replicas(self, replicas: Mapping[str, tuple[int, ...]]) -> None:
        """Publish in the registration which logs were truncated below the high watermark. If contact is lost, the tree
        keeps the old value until the next call. See `BrokerImage.truncated_replicas`.
        """
        with contextlib.suppress(CoordinationError):
            await self._change_registration(lambda known: known.replace(truncated_replicas=replicas))

    async def change_endpoints(self, endpoints: tuple[znodes.Endpoint, ...]) -> None:
        """Publish new endpoints, in this registration and in later ones (Kafka's updateBrokerInfo). Call again after a
        CoordinationError.
        """
        await self._change_registration(lambda known: known.replace(endpoints=endpoints))

    async def _change_registration(
        self, change: Callable[[znodes.BrokerRegistration], znodes.BrokerRegistration]
    ) -> None:
        async with self._changing_registration:
            known = self._registration
            if known is None or (registration := change(known)) == known:
                return
            written = registration.replace(timestamp_ms=self.clock.now_ms())
            await self.zk_client.update_broker(written)
            self._registration = registration
            broker = BrokerImage.of(written, self.broker_epoch)
        for changed in self._at_change:
            changed(broker)

    # -- expired sessions ----------------------------------------------------------------------------------------------

    def _session_changed(self, session: Coordination, state: SessionState) -> None:
        if state is not SessionState.EXPIRED or self._is_leaving or session is not self.coordination:
            return
        self._has_expired = True
        self._fence.registration_ended()
        if not self.is_shared:
            self.lost("its session has expired")
        elif self._renewal is None:
            logger.warning("The session %#x has expired", session.session_id)
            if self._registration is not None:
                for ended in self._at_end:
                    ended()
            self._renewal = asyncio.create_task(self._renew(), name="renew-session")

    async def _renew(self) -> None:
        try:
            while self._has_expired:
                try:
                    await self._restart()
                except (ConnectionLossError, SessionExpiredError) as error:
                    logger.warning("No new session yet: %s", error)
                    self._has_expired = True
                    with contextlib.suppress(CoordinationError):
                        await self.coordination.close()
                    await asyncio.sleep(RETRY_S)
                except (ClusterError, CoordinationError):
                    raise
                except Exception:  # a bug; without a retry this broker would stay registered but lead nothing
                    logger.exception("The new session is given up for another one in %d s", PAUSE_AFTER_BUG_S)
                    self._has_expired = True
                    with contextlib.suppress(CoordinationError):
                        await self.coordination.close()
                    await asyncio.sleep(PAUSE_AFTER_BUG_S)
        except (ClusterError, CoordinationError) as error:
            self._failure = str(error)
            self.lost(self._failure)
        finally:
            self._renewal = None

    async def _restart(self) -> None:
        self._take_session()
        await self._connect()
        if self._registration is None:
            return
        await self._follow_older_tree()
        broker = await self._register(self._registration)
        logger.info("Registered broker %d again, with the epoch %d", broker.broker_id, broker.epoch)
        for began in self._at_beginning:
            await began(broker)

    async def _follow_older_tree(self) -> None:
        """Accept controllers with lower epochs if the tree was restored to an older state, for example after a restart.
        This read is current: a new session sees everything written before it began.
        """
        try:
            epoch = await self.zk_client.controller_epoch()
        except znodes.ZnodeFormatError as error:
            self._damaged.report(error, "whether the tree is an older one is not known")
            return
        known = self._fence.controller_epoch
        if epoch < known:
            logger.error(
                "The tree was set back to an older state: its controller epoch is %d, after %d. This broker follows "
                "it; changes of topics, configurations and replicas since then are lost",
                epoch,
                known,
            )
            self._fence.follow_older_tree(epoch)

    async def without_contact(self, patience_s: float) -> None:
        """Return once the tree has not answered for `patience_s`, even if the connection is still open."""
        loop = asyncio.get_running_loop()
        answered_s = loop.time()
        while loop.time() - answered_s < patience_s:
            with contextlib.suppress(TimeoutError, CoordinationError):
                async with asyncio.timeout(patience_s):
                    await self.coordination.exists(znodes.CLUSTER_ID)
                answered_s = loop.time()
            await asyncio.sleep(RETRY_S)

    async def close(self) -> None:
        """Leave the cluster: closing the session removes the registration and its other ephemeral nodes."""
        self._is_leaving = True
        if self._renewal is not None:
            self._renewal.cancel()
            await asyncio.wait([self._renewal])
        with contextlib.suppress(SessionExpiredError):
            await self.coordination.close()


def _already_registered(found: znodes.BrokerRegistration) -> ClusterError:
    where = ",".join(f"{each.listener_name}://{each.host}:{each.port}" for each in found.endpoints)
    return ClusterError(f"A broker is already registered with the id {found.broker_id}, at {where}")
