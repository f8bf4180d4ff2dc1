"""A ControllerService on an embedded tree in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from broker.controller_service import ControllerService
from broker.controller_settings import ControllerSettings, InternalTopic
from broker.coordination.embedded import EmbeddedCoordination, EmbeddedEnsemble
from broker.registry import RequestContext
from cluster.controller.start_up import FoundReplica
from cluster.metadata_image import MetadataImage
from cluster.znodes import BrokerRegistration, Endpoint
from protocol.errors import ApiError, ErrorCode
from protocol.topic_partition import CONSUMER_OFFSETS
from tests.broker.coordination_fixtures import Machine
from tests.broker.seams import SeededRandom

CLUSTER_ID = "TDnAIpGdRY6C5D62KMJRLA"
SETTINGS = ControllerSettings(
    num_partitions=2,
    internal_topics={CONSUMER_OFFSETS: InternalTopic(5, 1, {"cleanup.policy": "compact"})},
)


def validate_topic_config(overrides: Mapping[str, str]) -> None:
    """A stand-in for the configuration's own check: it knows two keys."""
    for key, value in overrides.items():
        if key not in {"retention.ms", "cleanup.policy"}:
            raise ApiError(ErrorCode.INVALID_CONFIG, f"Unknown topic config name: {key}")
        if key == "retention.ms" and not value.lstrip("-").isdigit():
            raise ApiError(ErrorCode.INVALID_CONFIG, f"Invalid value {value} for configuration {key}")


class Cluster:
    """One broker, its machine, and every image it published."""

    def __init__(
        self,
        machine: Machine | None = None,
        settings: ControllerSettings = SETTINGS,
        ensemble: EmbeddedEnsemble | None = None,
    ) -> None:
        self.machine = machine or Machine()
        self.ensemble = ensemble or self.machine.open()
        self.coordination: EmbeddedCoordination = self.ensemble.session()
        registration = BrokerRegistration(0, (Endpoint("PLAINTEXT", "127.0.0.1", 9092, "PLAINTEXT"),))
        self.service = ControllerService(
            registration,
            self.coordination,
            self.machine.clock,
            SeededRandom(self.machine.executor.runs),
            settings,
            validate_topic_config,
        )
        self.published: list[tuple[MetadataImage, MetadataImage]] = []
        self.service.add_listener(lambda old, new: self.published.append((old, new)))

    @property
    def image(self) -> MetadataImage:
        return self.service.image

    async def start(self, found: Sequence[FoundReplica] | None = None, **options: Any) -> Cluster:
        """Start; gives itself. With `found` the tree is one that adopts logs."""
        await self.service.connect()
        await self.service.start(CLUSTER_ID, None if found is None else lambda: found, **options)
        return self

    async def restart(self, *, kill: bool = False, unclean: bool = False) -> Cluster:
        """Another process on the same disk, after this one was closed or killed."""
        if not kill:
            await self.service.close()
            await self.ensemble.close()
        self.machine.disk.kill_process()
        return await Cluster(self.machine, self.service.settings).start(unclean=unclean)

    async def tree(self) -> dict[str, bytes | None]:
        """Every node with its data."""
        nodes: dict[str, bytes | None] = {}
        unread = ["/"]
        while unread:
            path = unread.pop()
            nodes[path] = (await self.coordination.get(path))[0]
            unread.extend(f"{path.rstrip('/')}/{name}" for name in (await self.coordination.children(path))[0])
        return nodes


def context(version: int, listener_name: str = "PLAINTEXT") -> RequestContext:
    """A request in `version`."""
    return RequestContext(
        api_version=version,
        correlation_id=1,
        client_id="test",
        client_address="127.0.0.1",
        listener_name=listener_name,
    )
