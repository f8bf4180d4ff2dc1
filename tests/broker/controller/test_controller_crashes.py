"""Random changes of topics, a crash at a random call of the disk, and a restart.

Acknowledged changes survive, a change in flight happens entirely or not at all, and deleted topics leave nothing.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import pytest

from cluster.controller.start_up import FoundReplica
from cluster.controller.topics import NewTopic
from cluster.metadata_image import MetadataImage
from protocol.config_resources import ConfigResourceType
from tests.kit.controller.controller_fixtures import Cluster
from tests.kit.coordination_fixtures import Machine, in_loop
from tests.kit.environment import uuid_of
from tests.kit.memory_file_system import Fault, PowerCut

State = dict[str, tuple[int, str]]
"""By topic: its number of partitions and its retention.ms."""


def state_of(image: MetadataImage) -> State:
    return {
        name: (len(topic.partitions), image.config(ConfigResourceType.TOPIC, name).get("retention.ms", ""))
        for name, topic in image.topics.items()
    }


@dataclass
class RandomChanges:
    """The acknowledged state, and the state that the change in flight would produce."""

    chance: random.Random
    cluster: Cluster
    known: State = field(default_factory=dict)
    hoped: State = field(default_factory=dict)
    next_topic: int = 0

    def step(self) -> Awaitable[object]:
        """Start a random change."""
        service, configs = self.cluster.service, self.cluster.configs
        self.hoped = dict(self.known)
        name = self.chance.choice([*self.known, ""])
        kind = self.chance.randrange(4) if name else 0
        if kind == 0:
            name = f"t{self.next_topic}"
            self.next_topic += 1
            self.hoped[name] = (self.chance.randrange(1, 6), "7")
            return service.create_topics([NewTopic(name, self.hoped[name][0], 1, config={"retention.ms": "7"})])
        partitions, retention = self.known[name]
        if kind == 1:
            del self.hoped[name]
            return service.delete_topics([name])
        if kind == 2:
            self.hoped[name] = (partitions + 2, retention)
            return service.create_partitions(name, partitions + 2, None)
        retention = str(self.chance.randrange(1000))
        self.hoped[name] = (partitions, retention)
        return configs.alter_configs({(ConfigResourceType.TOPIC, name): {"retention.ms": retention}})


async def until_done_or_dead(machine: Machine, change: Awaitable[object]) -> bool:
    task = asyncio.ensure_future(change)
    while not task.done() and not machine.executor.crashed:
        await asyncio.sleep(0)
    if task.done():
        await task
        return True
    task.cancel()
    return False


def crash_at(call: int, fault: Fault) -> Callable[[str, str], Fault | None]:
    calls = 0

    def inject(_operation: str, _path: str) -> Fault | None:
        nonlocal calls
        calls += 1
        return fault if calls == call else None

    return inject


@pytest.mark.parametrize("seed", range(40))
@in_loop
async def test_lives_that_end_suddenly(seed: int) -> None:
    chance = random.Random(seed)
    machine = Machine()
    changes = RandomChanges(chance, await Cluster(machine).start())
    for _ in range(4):
        fault = Fault(crash_before=True) if chance.random() < 0.5 else Fault(crash_after=True)
        machine.disk.inject = crash_at(chance.randrange(1, 40), fault)
        while await until_done_or_dead(machine, changes.step()):
            changes.known = changes.hoped
        mode = chance.choice([None, *PowerCut])
        if mode is None:
            machine.disk.kill_process()
        else:
            machine.disk.cut_power(mode, chance.randrange)
        machine.executor.crashed = False
        changes.cluster = await Cluster(machine).start(unclean=True)
        found = state_of(changes.cluster.image)
        assert found in (changes.known, changes.hoped)
        changes.known = found
        await check_tree(changes.cluster)


@pytest.mark.parametrize("fault", [Fault(crash_before=True), Fault(crash_after=True)], ids=["before", "after"])
@in_loop
async def test_logs_are_adopted_also_when_the_first_start_ends_suddenly(fault: Fault) -> None:
    found = [FoundReplica("t", 0, uuid_of(5)), FoundReplica("t", 1, uuid_of(5))]
    calls = 0
    finished = False
    while not finished:
        calls += 1
        machine = Machine()
        cluster = Cluster(machine)
        machine.disk.inject = crash_at(calls, fault)
        finished = await until_done_or_dead(machine, cluster.start(found))
        machine.disk.kill_process()
        machine.executor.crashed = False
        cluster = await Cluster(machine).start(found, unclean=True)
        assert state_of(cluster.image) == {"t": (2, "-1")}
        await check_tree(cluster)
    assert calls > 5


async def check_tree(cluster: Cluster) -> None:
    """The tree holds exactly the topics of the image."""
    tree = await cluster.tree()
    names = set(cluster.image.topics)
    for parent in ("/brokers/topics", "/config/topics"):
        assert {path.split("/")[3] for path in tree if path.startswith(parent + "/")} == names
    assert not [path for path in tree if path.startswith("/admin/delete_topics/")]
    for topic in cluster.image.topics.values():
        states = [
            path for path in tree if path.startswith(f"/brokers/topics/{topic.name}/") and path.endswith("/state")
        ]
        assert len(states) == len(topic.partitions)
        assert all(partition.leader == 0 for partition in topic.partitions)
