"""Followers fetch over real connections."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from broker.replication.replica_fetcher_manager import fetchers_of
from cluster.controller.commands import UpdateMetadata
from cluster.metadata_image import BrokerImage
from cluster.znodes import Endpoint
from config.broker_config import BrokerConfig
from environment.system import SystemClock, TcpNetwork
from protocol.errors import ErrorCode
from tests.broker.inter_broker.command_server import served
from tests.broker.replication.nodes import Nodes, on_nodes
from tests.kit.environment import InlineExecutor
from tests.kit.waiting import eventually_on_loop

CONFIG = BrokerConfig({"replica.fetch.wait.max.ms": "50", "num.replica.fetchers": "2"})
ENVIRONMENT = SimpleNamespace(network=TcpNetwork(50), clock=SystemClock(), executor=InlineExecutor())


@on_nodes(partitions=4)
async def test_a_follower_fetches_from_its_leaders_address(nodes: Nodes) -> None:
    """A leader that restarts at another address is found through the metadata."""
    follower = nodes[2]
    nodes.states = {number: state.replace(replicas=(1, 2), isr=(1, 2)) for number, state in nodes.states.items()}
    fence = follower.metadata._fence
    environment: Any = ENVIRONMENT
    quota, keep = follower.quotas.follower, follower._keep_log_starts
    fetchers = fetchers_of(
        2, CONFIG, environment, environment.network, follower.metadata, fence, follower.replicas, quota, keep
    )

    def move(port: int) -> None:
        address = Endpoint("PLAINTEXT", "127.0.0.1", port, "PLAINTEXT")
        brokers = {1: BrokerImage(1, 51, {"PLAINTEXT": address})}
        follower.metadata.update_metadata(UpdateMetadata(1, 1, -1, live_brokers=brokers))

    try:
        await nodes.tell(1, 2, is_new=True)
        for value in (b"a", b"b"):
            async with served(nodes[1].fetches, nodes[1].offsets) as port:
                move(port)
                for number in nodes.states:
                    last = nodes.append(1, value * 100_000, number=number)
                    assert await nodes.acknowledged(1, last, number) is ErrorCode.NONE
        assert [len(follower.values(number)) for number in nodes.states] == [2] * 4
        assert len(fetchers.fetchers) == 2
        move(1)
        await eventually_on_loop("both fetchers have lost their leader", lambda: all(
            fetcher._is_unreachable for fetcher in fetchers.fetchers
        ), pause_s=0.001)  # fmt: skip
    finally:
        await fetchers.close()
