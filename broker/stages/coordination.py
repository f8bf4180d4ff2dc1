"""Second stage: a session with the coordination tree, and the data in it before this broker is registered."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from broker.broker_environment import Ensemble, Environment
from broker.controller.cluster_membership import ClusterMembership
from broker.metadata.config_service import ConfigService
from broker.metadata.metadata_cache import MetadataCache
from broker.stages.directories import NO_BROKER_ID, BrokerIdentity
from broker.zookeeper.kafka_zk_client import ClusterError
from cluster.controller.commands import CommandFence
from cluster.metadata_image import MetadataImage
from config.broker_config import BrokerConfig
from protocol.value import Value
from zookeeper.coordination import CoordinationError


class OpenCoordination(Value):
    """The session, the ids of this broker and (in `metadata`) of the cluster, and the current configurations."""

    identity: BrokerIdentity
    ensemble: Ensemble
    fence: CommandFence
    membership: ClusterMembership
    metadata: MetadataCache
    configs: ConfigService

    @classmethod
    async def open(
        cls,
        config: BrokerConfig,
        environment: Environment,
        identity: BrokerIdentity,
        *,
        on_journal_failure: Callable[[OSError], None],
        on_lost: Callable[[str], None],
    ) -> OpenCoordination:
        """Connect. Raises CoordinationError, JournalError, ClusterError."""
        ensemble = await environment.open_ensemble(environment, config, on_journal_failure)
        fence = CommandFence()
        membership = ClusterMembership(
            ensemble,
            environment.clock,
            environment.random,
            fence,
            on_lost,
            session_timeout_ms=config.zookeeper_session_timeout_ms,
        )
        stored = await membership.connect()
        try:
            cluster_id = await membership.create_or_get_cluster_id(identity.cluster_id, is_shared=ensemble.is_shared)
            if identity.broker_id == NO_BROKER_ID:
                broker_id = await membership.zk_client.generate_broker_id(config.reserved_broker_max_id)
                identity = identity.replace(broker_id=broker_id)
        except ClusterError:
            await membership.close()
            raise
        metadata = MetadataCache(fence, MetadataImage(cluster_id=cluster_id, configs=stored))
        configs = ConfigService(config, metadata)
        configs.broker_id = identity.broker_id
        metadata.add_listener(configs.image_changed)
        return cls(identity, ensemble, fence, membership, metadata, configs)

    async def abandon(self) -> None:
        """End the session at once if other brokers share the tree: they would wait for its timeout."""
        if self.ensemble.is_shared:
            with contextlib.suppress(CoordinationError):
                await self.membership.close()

    async def close(self, *, has_failed: bool) -> None:
        """Leave the cluster, unless the tree is unreachable."""
        if not has_failed:
            await self.membership.close()
        await self.ensemble.close()
