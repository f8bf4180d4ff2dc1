"""This broker's place in the cluster: its session, the cluster's id and its registration."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from broker.environment.contract import Clock, Random
from broker.zookeeper.kafka_zk_client import ClusterError, KafkaZkClient
from cluster import znodes
from cluster.controller.commands import CommandFence
from cluster.metadata_image import BrokerImage, ConfigResource
from cluster.zookeeper.coordination import Coordination, SessionState
from protocol.uuids import uuid_to_text


class ClusterMembership:
    """Owner of the session. A registration has an epoch; `fence` refuses commands to older registrations."""

    def __init__(
        self,
        coordination: Coordination,
        clock: Clock,
        random: Random,
        fence: CommandFence,
        on_lost: Callable[[str], None] = lambda _reason: None,
    ) -> None:
        """`on_lost` is called with the reason when this broker can only become a member again by a restart."""
        self.coordination = coordination
        self.lost = on_lost
        self._is_leaving = False
        coordination.add_session_listener(self._session_changed)
        self.zk_client = KafkaZkClient(coordination, clock)
        self._clock = clock
        self._random = random
        self._fence = fence

    async def connect(self) -> Mapping[ConfigResource, Mapping[str, str]]:
        """Open the session, before anything else; gives all configurations, as logs are loaded by their own."""
        await self.coordination.connect()
        await self.zk_client.create_missing(znodes.PERSISTENT_PATHS)
        return await self.zk_client.read_configs()

    async def agree_on_cluster_id(self, known: str | None, *, is_shared: bool = False) -> str:
        """The cluster's id, which a new cluster gets: `known` is the one in meta.properties, if there is one. Raises
        ClusterError when they differ, and when the tree that brokers share has none: it is another cluster's then.
        """
        cluster_id = await self.zk_client.cluster_id()
        if cluster_id is None:
            if is_shared and known is not None:
                raise ClusterError(
                    f"zookeeper.connect names a place where no cluster is yet, and the log directories belong to the "
                    f"cluster {known} (meta.properties): check the servers and the chroot"
                )
            cluster_id = await self.zk_client.create_cluster_id(known or uuid_to_text(self._random.uuid()))
        if known is not None and known != cluster_id:
            raise ClusterError(
                f"The cluster id {cluster_id} does not match the one in meta.properties, {known}: "
                "the log directories belong to another cluster"
            )
        return cluster_id

    async def register(self, registration: znodes.BrokerRegistration) -> BrokerImage:
        """Register this broker. Commands to its earlier registrations are refused from now on. Raises ClusterError."""
        registration = registration.replace(timestamp_ms=self._clock.now_ms())
        epoch = await self.zk_client.register_broker(registration)
        self._fence.broker_epoch = epoch
        endpoints = {endpoint.listener_name: endpoint for endpoint in registration.endpoints}
        return BrokerImage(registration.broker_id, epoch, endpoints, registration.rack)

    def _session_changed(self, state: SessionState) -> None:
        if state is SessionState.EXPIRED and not self._is_leaving:
            self.lost("its session has expired")

    async def close(self) -> None:
        """Leave: the registration, and what else this session holds, vanish with it."""
        self._is_leaving = True
        await self.coordination.close()
