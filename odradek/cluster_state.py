"""The views of a cluster's brokers, put together. A broker that is cut off has an older view: epochs decide."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class View(NamedTuple):
    """The cluster as one broker sees it: the answers to `GET /v1/broker` and `GET /v1/topics`."""

    broker: Mapping[str, Any]
    topics: list[dict[str, Any]]

    def topic(self, name: str) -> dict[str, Any] | None:
        """A topic by its name."""
        return next((each for each in self.topics if each["name"] == name), None)


class ClusterState(NamedTuple):
    """The newest of what the brokers say. `controller` is one that says so itself, else None."""

    views: Mapping[int, View]
    """Of the brokers that run, by broker id."""
    controller: int | None
    topics: list[dict[str, Any]]

    @classmethod
    def of(cls, views: Mapping[int, View]) -> ClusterState:
        """Put the views together."""
        newest = max(views.values(), key=lambda view: view.broker["controller_epoch"], default=None)
        if newest is None:
            return cls(views, None, [])
        named = newest.broker["controller_id"]
        own = views.get(named)
        if own is not None and (
            own.broker["controller_id"] != named or own.broker["controller_epoch"] < newest.broker["controller_epoch"]
        ):
            own = None
        topics = [_newest(topic, views) for topic in (own or newest).topics]
        return cls(views, None if own is None else named, topics)

    def partition(self, topic: str, partition: int) -> dict[str, Any] | None:
        """A partition; it has `latest` if its leader leads."""
        for each in self.topics:
            if each["name"] == topic and 0 <= partition < len(each["partitions"]):
                found: dict[str, Any] = each["partitions"][partition]
                return found
        return None

    def leads(self, topic: str, partition: int) -> int | None:
        """The broker that leads a partition and knows it, or None."""
        found = self.partition(topic, partition)
        return found["leader"] if found is not None and "latest" in found else None

    def describe(self, topic: str, partition: int) -> str:
        """A partition in words."""
        found = self.partition(topic, partition)
        if found is None:
            return f"{topic}-{partition} does not exist"
        leader = "no leader" if found["leader"] < 0 else f"leader {found['leader']}"
        if found["leader"] >= 0 and "latest" not in found:
            leader += " (which does not lead yet)"
        return f"{topic}-{partition} has {leader}, replicas {found['replicas']}, ISR {sorted(found['isr'])}"


def _newest(topic: dict[str, Any], views: Mapping[int, View]) -> dict[str, Any]:
    """A topic with the newest state of each partition, and the offsets of its leader."""
    known = [view.topic(topic["name"]) for view in views.values()]
    same = [each for each in known if each is not None and each["topic_id"] == topic["topic_id"]]
    partitions = []
    for index in range(len(topic["partitions"])):
        states = [each["partitions"][index] for each in same if index < len(each["partitions"])]
        newest = max(states, key=lambda state: (state["leader_epoch"], state["partition_epoch"]))
        leader = views.get(newest["leader"])
        led = None if leader is None else leader.topic(topic["name"])
        offsets = {}
        if led is not None and led["topic_id"] == topic["topic_id"] and index < len(led["partitions"]):
            own = led["partitions"][index]
            if own["leader_epoch"] == newest["leader_epoch"] and "latest" in own:
                offsets = {"earliest": own["earliest"], "latest": own["latest"]}
        kept = {name: value for name, value in newest.items() if name not in {"earliest", "latest"}}
        partitions.append({**kept, **offsets})
    return {**topic, "partitions": partitions}
