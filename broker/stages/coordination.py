"""Second stage: a session with the coordination tree, and what it says before this broker is registered."""

from __future__ import annotations

from collections.abc import Callable

from broker.broker_identity import BrokerIdentity
from broker.controller.cluster_membership import ClusterMembership
from broker.environment.contract import Ensemble, Environment
from broker.metadata.config_service import ConfigService
from broker.metadata.metadata_cache import MetadataCache
from cluster.controller.commands import CommandFence
from cluster.metadata_image import MetadataImage
from config.broker_config import BrokerConfig
from protocol.value import Value


class OpenCoordination(Value):
    """The session, the cluster's id (in `metadata`) and the configurations in force."""

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
        ensemble = await environment.open_ensemble(environment, config.log_dirs[0], on_journal_failure)
        fence = CommandFence()
        membership = ClusterMembership(ensemble.session(), environment.clock, environment.random, fence, on_lost)
        stored = await membership.connect()
        cluster_id = await membership.agree_on_cluster_id(identity.cluster_id)
        metadata = MetadataCache(fence, MetadataImage(cluster_id=cluster_id, configs=stored))
        configs = ConfigService(config, metadata)
        configs.broker_id = identity.broker_id
        metadata.add_listener(configs.image_changed)
        return cls(ensemble, fence, membership, metadata, configs)

    async def close(self, *, has_failed: bool) -> None:
        """Leave the cluster, unless the tree cannot be asked any more."""
        if not has_failed:
            await self.membership.close()
        await self.ensemble.close()
