"""The same random transactions against a real ZooKeeper and our tree: results, errors and stats are equal."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from kazoo import exceptions
from kazoo.client import KazooClient

from tests.kit.apache_kafka import zookeeper
from zookeeper import coordination
from zookeeper.coordination import Check, Create, Delete, MultiError, Operation, SetData, ZnodeStat
from zookeeper.znode_tree import CreateSession, Multi, ZnodeTree

pytestmark = [pytest.mark.java, pytest.mark.timeout(300)]

ERRORS = {
    exceptions.NoNodeError: coordination.NoNodeError,
    exceptions.NodeExistsError: coordination.NodeExistsError,
    exceptions.BadVersionError: coordination.BadVersionError,
    exceptions.NotEmptyError: coordination.NotEmptyError,
    exceptions.NoChildrenForEphemeralsError: coordination.NoChildrenForEphemeralsError,
    exceptions.BadArgumentsError: coordination.BadArgumentsError,
}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KazooClient]:
    with zookeeper(tmp_path_factory.mktemp("zookeeper")) as address:
        client = KazooClient(hosts=address)
        client.start()
        yield client
        client.stop()
        client.close()


class Ours:
    """The pure tree, with one session."""

    def __init__(self) -> None:
        self.tree = ZnodeTree()
        self.tree.apply(CreateSession(1), 1, 0)

    def multi(self, operations: list[Operation]) -> Any:
        try:
            applied = self.tree.apply(Multi(1, tuple(operations)), self.tree.last_zxid + 1, 0)
        except MultiError as error:
            return error.index, type(error.__cause__)
        return [
            summary(result) if isinstance(result, ZnodeStat) else result if isinstance(result, str) else None
            for result in applied.results
        ]


def theirs(client: KazooClient, operations: list[Operation]) -> Any:
    transaction = client.transaction()
    for operation in operations:
        match operation:
            case Create(path, data, ephemeral, sequential):
                transaction.create(path, data or b"", ephemeral=ephemeral, sequence=sequential)
            case SetData(path, data, version):
                transaction.set_data(path, data or b"", version)
            case Delete(path, version):
                transaction.delete(path, version)
            case Check(path, version):
                transaction.check(path, version)
    results = transaction.commit()
    for index, result in enumerate(results):
        if isinstance(result, Exception) and not isinstance(
            result, exceptions.RolledBackError | exceptions.RuntimeInconsistency
        ):
            return index, ERRORS[type(result)]
    return [
        result if isinstance(result, str) else None if result is True else summary_of_theirs(result)
        for result in results
    ]


def summary(stat: ZnodeStat) -> tuple[object, ...]:
    return (
        stat.version,
        stat.cversion,
        stat.data_length,
        stat.num_children,
        stat.ephemeral_owner != 0,
        stat.czxid == stat.mzxid,
        stat.czxid == stat.pzxid,
    )


def summary_of_theirs(stat: Any) -> tuple[object, ...]:
    return (
        stat.version,
        stat.cversion,
        stat.dataLength,
        stat.numChildren,
        stat.ephemeralOwner != 0,
        stat.czxid == stat.mzxid,
        stat.czxid == stat.pzxid,
    )


def random_operation(chance: random.Random, root: str) -> Operation:
    path = root + chance.choice(["/a", "/b", "/c", "/a/x", "/a/y", "/b/x", "/a/x/1", "/c/x"])
    version = chance.choice([-1, -1, -1, 0, 1, 2])
    data = bytes(chance.randrange(4))
    kind = chance.randrange(10)
    if kind < 5:
        return Create(path, data, ephemeral=chance.random() < 0.2, sequential=chance.random() < 0.2)
    if kind < 7:
        return SetData(path, data, version)
    if kind < 9:
        return Delete(path, version)
    return Check(path, version)


def test_two_thousand_random_transactions_end_alike(client: KazooClient) -> None:
    chance = random.Random(20)
    ours = Ours()
    failures = 0
    for number in range(40):
        root = f"/run{number}"
        client.create(root)
        ours.multi([Create(root, b"")])
        for _ in range(50):
            operations = [random_operation(chance, root) for _ in range(chance.choice([1, 1, 2, 3, 5]))]
            expected = theirs(client, operations)
            assert ours.multi(operations) == expected, operations
            failures += isinstance(expected, tuple)
        compare_below(client, ours.tree, root)
    assert 200 < failures < 1800


def compare_below(client: KazooClient, tree: ZnodeTree, path: str) -> None:
    data, stat = client.get(path)
    our_data, our_stat = tree.get(path)
    assert (our_data or b"") == (data or b"")
    assert summary(our_stat) == summary_of_theirs(stat), path
    children = sorted(client.get_children(path))
    assert tree.children(path)[0] == children
    for child in children:
        compare_below(client, tree, f"{path}/{child}")


@pytest.mark.parametrize("path", ["/a/./b", "/a/../b"])
def test_relative_paths_are_refused_by_both(client: KazooClient, path: str) -> None:
    with pytest.raises((exceptions.BadArgumentsError, ValueError)):
        client.create(path)
    assert Ours().multi([Create(path)]) == (0, coordination.BadArgumentsError)
