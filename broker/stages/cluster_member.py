"""Fourth stage: this broker is registered, receives its roles from the controller, and coordinates."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING

from broker.broker_environment import Environment
from broker.controller.broker_requests import LocalChannel
from broker.controller.cluster_membership import ClusterMembership
from broker.controller.controller_service import ControllerService
from broker.controller.controller_term import UncleanElections, controller_settings
from broker.controller.topic_changes import TopicRules
from broker.metadata.auto_topic_creation import AutoTopicCreation
from broker.metadata.config_service import ConfigService
from broker.metadata.dynamic_configs import DynamicConfigs
from broker.metadata.metadata_cache import MetadataCache
from broker.stages.coordination import OpenCoordination
from broker.stages.coordinators import CoordinatorServices
from broker.stages.directories import LockedDirectories
from broker.stages.logs import LoadedLogs
from cluster.controller.commands import TopicStates
from cluster.controller.start_up import FoundReplica
from cluster.metadata_image import BrokerImage, MetadataImage, TopicImage
from cluster.znodes import BrokerRegistration
from config.broker_config import BrokerConfig
from protocol.value import Value
from security.authorization import authorization, settings_of_tokens
from storage.log_manager import LogManager

if TYPE_CHECKING:
    from broker.controller.broker_requests import ControllerApi
    from broker.security.acl_authorizer import AclAuthorizer
    from broker.security.delegation_token_manager import DelegationTokenManager
    from broker.stages.cluster_links import ClusterLinks

logger = logging.getLogger("kafka.server.KafkaServer")

ANSWER_S = 10.0
"""Time limit of a controlled shutdown, without its pauses (controlled.shutdown.retry.backoff.ms)."""
_ELECTION_RULES = ("unclean.leader.election.enable", "min.insync.replicas")


class ClusterMember(Value):
    """A registered broker, with its parts in the cluster: the controller, which it may become, the configurations, and
    the groups and transactions whose partitions it leads. `controller_api` reaches the controller, wherever it is.
    """

    broker_id: int
    membership: ClusterMembership
    controller: ControllerService
    controller_api: ControllerApi
    auto_topics: AutoTopicCreation
    dynamic_configs: DynamicConfigs
    authorizer: AclAuthorizer | None
    """Is None without authorization."""
    delegation_tokens: DelegationTokenManager | None
    """Is None if tokens lack a secret key."""
    coordinators: CoordinatorServices
    unclean_elections: UncleanElections
    commands: LocalChannel
    """Passes the controller's commands to this broker."""
    links: ClusterLinks | None
    """Is None for a standalone broker."""

    @classmethod
    async def join(
        cls,
        config: BrokerConfig,
        environment: Environment,
        directories: LockedDirectories,
        coordination: OpenCoordination,
        logs: LoadedLogs,
        registration: BrokerRegistration,
    ) -> ClusterMember:
        """Register this broker, and become controller if the cluster lacks one; in that case, leaders are elected when
        this returns. Raises ClusterError.
        """
        metadata, configs, hosted = coordination.metadata, coordination.configs, logs.replicas.hosted
        membership, broker_id = coordination.membership, registration.broker_id
        links = _links(broker_id, config, environment, coordination, logs) if membership.is_shared else None
        api: ControllerApi
        coordinators = CoordinatorServices.of(
            broker_id, config, environment, coordination, logs, links,
            lambda: api.allocate_producer_ids(broker_id, membership.broker_epoch),
        )  # fmt: skip

        async def complete_deletions() -> None:
            await logs.complete_deletions()
            await coordinators.groups.topics_forgotten()

        async def read_configs(begun: list[TopicStates]) -> None:
            await dynamic_configs.read_before(begun)

        unclean = UncleanElections(lambda topic: configs.log_config(topic).unclean_leader_election_enable)
        commands = LocalChannel(hosted, metadata, complete_deletions, read_configs if membership.is_shared else None)
        controller = ControllerService(
            membership,
            commands,
            controller_settings(config),
            TopicRules(
                environment.random, configs.validate_topic, metadata.update_configs,
                directories.space.refuse_new_partitions, unclean,
                None if registration.previous_epoch is None else partial(_min_isr, configs),
                partial(_known_topic, metadata),
            ),
            None if links is None else links.new_channel,
        )  # fmt: skip
        api = controller if links is None else links.router(broker_id, config, metadata, controller)
        configs.on_change(controller.config_changed)
        metadata.add_listener(partial(_look_for_leaders, controller))
        dynamic_configs = DynamicConfigs(membership, metadata)
        membership.on_session_change(hosted.resign_all, _nothing_to_begin)
        broker = await membership.register(registration)
        await dynamic_configs.start()
        await controller.start(broker, partial(_found_replicas, logs.log_manager), unclean=not logs.report.clean)
        if logs.report.has_stale_checkpoints:
            await logs.complete_deletions()
        directories.claim(environment, metadata.image.cluster_id)
        await directories.failures.serve(hosted.directory_failed, controller.log_directory_failed)
        return cls(
            broker_id, membership, controller, api, AutoTopicCreation(api, lambda: controller.settings, metadata),
            dynamic_configs, *await _security(config, environment, membership), coordinators, unclean, commands, links,
        )  # fmt: skip

    async def publish_truncated_replicas(self, log_manager: LogManager) -> None:
        """Publish the replicas that must not be elected in the tree. Call it regularly."""
        await self.membership.publish_truncated_replicas(log_manager.checkpoints.truncated_replicas())

    async def remove_expired_tokens(self) -> None:
        """Remove expired delegation tokens. Call it regularly; it does nothing unless this broker is the controller."""
        if self.delegation_tokens is not None and self.controller.is_active:
            await self.delegation_tokens.remove_expired()

    async def close(self) -> None:
        """Stop following leaders and configurations. Call it before the logs are closed."""
        if self.links is not None:
            await self.links.close()
        await self.dynamic_configs.close()
        if self.authorizer is not None:
            await self.authorizer.close()

    async def hand_over(
        self, config: BrokerConfig, metadata: MetadataCache, without_contact: asyncio.Task[None]
    ) -> None:
        """Before shutdown, move the leadership of this broker's partitions to others, while it still serves. This is
        skipped once `without_contact` is done, because no controller can change anything then, and when the controller
        does not answer.
        """
        if not self.membership.is_shared:
            return
        from broker.controller.controlled_shutdown import controlled_shutdown

        asking = asyncio.create_task(
            controlled_shutdown(
                self.controller_api,
                self.broker_id,
                lambda: self.membership.broker_epoch,
                config,
                metadata,
            )
        )
        pauses_s = config.controlled_shutdown_max_retries * config.controlled_shutdown_retry_backoff_ms / 1000
        await asyncio.wait((asking, without_contact), timeout=pauses_s + ANSWER_S, return_when=asyncio.FIRST_COMPLETED)
        if asking.done():
            asking.result()
        else:
            asking.cancel()
            logger.warning("Proceeding to do an unclean shutdown: no controller has answered the controlled shutdown")


async def _security(
    config: BrokerConfig, environment: Environment, membership: ClusterMembership
) -> tuple[AclAuthorizer | None, DelegationTokenManager | None]:
    """The authorizer, with all ACLs loaded, and the delegation tokens. Either may be None if it is not configured.

    Raises ClusterError, CoordinationError.
    """
    authorizer = tokens = None
    acl_settings, token_settings = authorization(config.originals), settings_of_tokens(config.values)
    if acl_settings is not None:
        from broker.security.acl_authorizer import AclAuthorizer

        authorizer = AclAuthorizer(membership, environment.random, acl_settings)
        await authorizer.start()
    if token_settings is not None:
        from broker.security.delegation_token_manager import DelegationTokenManager

        tokens = DelegationTokenManager(membership, environment, token_settings)
        await tokens.prepare()
    return authorizer, tokens


def _links(
    broker_id: int,
    config: BrokerConfig,
    environment: Environment,
    coordination: OpenCoordination,
    logs: LoadedLogs,
) -> ClusterLinks:
    from broker.stages.cluster_links import ClusterLinks

    metadata, fence = coordination.metadata, coordination.fence
    links = ClusterLinks.of(broker_id, config, environment, metadata, fence, logs)
    coordination.configs.on_change(links.config_changed)
    return links


async def _nothing_to_begin(_broker: BrokerImage) -> None:
    """Do nothing: the controller sends this broker's roles in a new session."""


def _known_topic(metadata: MetadataCache, name: str) -> TopicImage | None:
    return metadata.image.topics.get(name)


def _min_isr(configs: ConfigService, topic: str) -> int:
    return configs.log_config(topic).min_insync_replicas


def _found_replicas(log_manager: LogManager) -> list[FoundReplica]:
    return [FoundReplica(*log.topic_partition, log.topic_id, log.latest_epoch()) for log in log_manager.logs.values()]


def _look_for_leaders(controller: ControllerService, old: MetadataImage, new: MetadataImage) -> None:
    """Partitions without a leader may get one once unclean elections are allowed, and leaders with too few in-sync
    replicas may commit again once min.insync.replicas is low enough.
    """
    if new.configs is not old.configs and any(
        key in overrides and overrides[key] != old.config(*resource).get(key)
        for resource, overrides in new.configs.items()
        for key in _ELECTION_RULES
    ):
        controller.election_rules_changed()
