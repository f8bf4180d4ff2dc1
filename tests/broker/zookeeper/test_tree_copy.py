"""Copying part of a tree into another one."""

from __future__ import annotations

from broker.zookeeper.tree_copier import operations_to_copy, transactions
from zookeeper.coordination import Create, Delete, Operation, SetData
from zookeeper.znode_tree import CreateSession, Multi, ZnodeTree


def tree_after(*operations: Operation) -> ZnodeTree:
    tree = ZnodeTree()
    tree.apply(CreateSession(1), 1, 0)
    for zxid, operation in enumerate(operations, 2):
        tree.apply(Multi(1, (operation,)), zxid, 0)
    return tree


def test_lasting_nodes_are_copied_parents_first() -> None:
    tree = tree_after(
        Create("/b", b"1"),
        Create("/b/null"),
        Create("/b/empty", b""),
        Create("/b/mine", b"", ephemeral=True),
        Create("/a", b""),
        SetData("/b", b"2"),
        Create("/zookeeper"),
        Create("/zookeeper/quota"),
    )
    assert list(operations_to_copy(tree)) == [
        Create("/a", b""),
        Create("/b", b"2"),
        Create("/b/empty", b""),
        Create("/b/null", None),
    ]


def test_notices_are_left_behind() -> None:
    """In the copy, the numbers restart: a notice with an old number could not be created, or would be taken as already
    read.
    """
    tree = tree_after(
        Create("/config"),
        Create("/config/changes"),
        *(Create("/config/changes/config_change_", b"", sequential=True) for _ in range(3)),
        Delete("/config/changes/config_change_0000000000"),
    )
    copy = tree_after(*operations_to_copy(tree))
    assert copy.children("/config/changes")[0] == []


def test_ids_are_not_given_again() -> None:
    """A generated id is the version of /brokers/seqid."""
    tree = tree_after(Create("/brokers"), Create("/brokers/seqid", b""), *[SetData("/brokers/seqid", b"")] * 3)
    copy = tree_after(*operations_to_copy(tree))
    assert copy.get("/brokers/seqid")[1].version == 3


def test_transactions_are_bounded() -> None:
    operations = [
        Create("/a", bytes(60)),
        Create("/b", bytes(20)),
        Create("/c"),
        Create("/d", bytes(200)),
        Create("/e"),
    ]
    cut = list(transactions(iter(operations), 100, 8))
    assert cut == [operations[:2], operations[2:3], operations[3:4], operations[4:]]
    many = [Create(f"/{number:04d}") for number in range(2001)]
    assert [len(each) for each in transactions(iter(many), 1 << 20, 64)] == [1000, 1000, 1]
