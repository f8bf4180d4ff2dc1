"""The faults of the network of a cluster: which packets are lost between its brokers and its ZooKeeper tree, and how
long the others take.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet

from odradek.control import OdradekError

TREE = "tree"
"""The node that is the cluster's ZooKeeper tree."""
Node = int | str
"""The id of a broker, or TREE."""


class NetworkPlan:
    """The faults that are set. `nodes` are all nodes; it may grow."""

    def __init__(self, nodes: Collection[Node]) -> None:
        self._nodes = nodes
        self._cuts: set[tuple[Node, Node]] = set()
        """Pairs of a sender and a receiver whose packets are lost."""
        self._latencies_ms: dict[tuple[Node, Node], float] = {}

    def partition(self, groups: Iterable[AbstractSet[Node]]) -> None:
        """Cut all connections between these groups. The tree is in the largest group unless one names it, as it would
        be with most servers of a ZooKeeper ensemble.
        """
        parts = [set(group) for group in groups]
        named = [node for part in parts for node in part]
        self._check(named)
        if len(parts) < 2 or len(set(named)) < len(named):
            raise OdradekError(f"a partition has at least two groups, and each node is in one: {_text(parts)}")
        if TREE not in named:
            largest = max(parts, key=len)
            if sum(len(part) == len(largest) for part in parts) > 1:
                raise OdradekError(f"no group is the largest one: name the side of the tree, {{1, {TREE!r}}}")
            largest.add(TREE)
        for part in parts:
            for other in parts:
                if other is not part:
                    self._cuts |= {(sender, receiver) for sender in part for receiver in other}

    def isolate(self, node: Node) -> None:
        """Cut all connections of a node."""
        self._check([node])
        for other in self._nodes:
            if other != node:
                self._cuts |= {(node, other), (other, node)}

    def cut(self, sender: Node, receiver: Node) -> None:
        """Lose what one node sends to another; the other direction stays."""
        self._check([sender, receiver])
        self._cuts.add((sender, receiver))

    def set_latency(self, one: Node, other: Node, ms: float) -> None:
        """Give all packets between two nodes a latency, in both directions; 0 takes it away."""
        self._check([one, other])
        if ms < 0:
            raise OdradekError(f"a latency is at least 0 ms, not {ms}")
        self._latencies_ms[one, other] = self._latencies_ms[other, one] = ms

    def heal(self) -> None:
        """Take away all cuts and latencies."""
        self._cuts.clear()
        self._latencies_ms.clear()

    def are_connected(self, one: Node, other: Node) -> bool:
        """Whether packets arrive in both directions."""
        return (one, other) not in self._cuts and (other, one) not in self._cuts

    def links(self, node: Node, ports: Mapping[Node, int]) -> list[dict[str, object]]:
        """The faults of the connections of `node` to other nodes, by their ports; see `broker.test_mode.cut_network`.
        The tree has a port for each broker.
        """
        return [
            {
                "port": port,
                "sends": (node, other) not in self._cuts,
                "receives": (other, node) not in self._cuts,
                "latency_ms": self._latencies_ms.get((node, other), 0),
            }
            for other, port in ports.items()
            if other != node
        ]

    def description(self) -> str:
        """The cuts in words, or nothing."""
        pairs = sorted(f"{sender} -> {receiver}" for sender, receiver in self._cuts)
        return f"; cut: {', '.join(pairs)}" if pairs else ""

    def _check(self, nodes: Iterable[Node]) -> None:
        for node in nodes:
            if node not in self._nodes:
                known = ", ".join(map(repr, sorted(self._nodes, key=str)))
                raise OdradekError(f"the cluster has no node {node!r}; there are: {known}")


def _text(parts: Iterable[AbstractSet[Node]]) -> str:
    return ", ".join("{" + ", ".join(map(repr, sorted(part, key=str))) + "}" for part in parts)
