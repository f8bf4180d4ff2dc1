"""The tree's rules: versions, atomicity, ephemerals, sequence numbers, events."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zookeeper.coordination import (
    BadArgumentsError,
    BadVersionError,
    Check,
    Create,
    Delete,
    EventType,
    MultiError,
    NoChildrenForEphemeralsError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    Operation,
    SessionExpiredError,
    SetData,
    WatchEvent,
)
from zookeeper.znode import validate_path
from zookeeper.znode_tree import Applied, CloseSession, CreateSession, Multi, ZnodeTree


class Driver:
    """A tree with one open session and an increasing zxid."""

    def __init__(self) -> None:
        self.tree = ZnodeTree()
        self.session = self.open()

    def open(self) -> int:
        session_id = self.tree.next_session_id
        self.tree.apply(CreateSession(session_id), self.tree.last_zxid + 1, 0)
        return session_id

    def do(self, *operations: Operation, now_ms: int = 0, session: int | None = None) -> Applied:
        return self.tree.apply(Multi(session or self.session, operations), self.tree.last_zxid + 1, now_ms)


def contents(tree: ZnodeTree) -> dict[str, Any]:
    return {path: (node.data, node.stat(), sorted(node.children or ())) for path, node in tree.nodes()}


def test_a_created_node_has_the_stat_of_its_transaction() -> None:
    driver = Driver()
    applied = driver.do(Create("/a", b"one"), now_ms=77)
    data, stat = driver.tree.get("/a")
    assert applied.results == ["/a"]
    assert data == b"one"
    assert (stat.czxid, stat.mzxid, stat.pzxid) == (2, 2, 2)
    assert (stat.ctime_ms, stat.mtime_ms, stat.version, stat.data_length) == (77, 77, 0, 3)


def test_setting_data_raises_the_version_and_leaves_the_creation() -> None:
    driver = Driver()
    driver.do(Create("/a", b"one"), now_ms=1)
    (stat,) = driver.do(SetData("/a", b"three", 0), now_ms=2).results
    assert stat == driver.tree.get("/a")[1]
    assert (stat.czxid, stat.mzxid, stat.ctime_ms, stat.mtime_ms, stat.version) == (2, 3, 1, 2, 1)


def test_null_data_is_not_empty_data() -> None:
    driver = Driver()
    driver.do(Create("/null"), Create("/empty", b""))
    assert driver.tree.get("/null")[0] is None
    assert driver.tree.get("/empty")[0] == b""


@pytest.mark.parametrize(
    ("operation", "error"),
    [
        (Create("/a"), NodeExistsError),
        (Create("/missing/b"), NoNodeError),
        (Create("/temporary/b"), NoChildrenForEphemeralsError),
        (Create("a"), BadArgumentsError),
        (SetData("/missing", b""), NoNodeError),
        (SetData("/a", b"", 5), BadVersionError),
        (Delete("/missing"), NoNodeError),
        (Delete("/a", 5), BadVersionError),
        (Delete("/parent"), NotEmptyError),
        (Delete("/"), BadArgumentsError),
        (Check("/a", 1), BadVersionError),
        (Check("/missing", 0), NoNodeError),
    ],
)
def test_an_operation_that_fails_undoes_those_before_it(operation: Operation, error: type[Exception]) -> None:
    driver = Driver()
    driver.do(Create("/a"), Create("/temporary", ephemeral=True), Create("/parent"), Create("/parent/child"))
    before = contents(driver.tree)
    with pytest.raises(MultiError) as raised:
        driver.do(
            Create("/new"),
            SetData("/a", b"x"),
            SetData("/a", b"y"),
            Delete("/parent/child"),
            Create("/parent/child"),
            Create("/parent/next", ephemeral=True),
            SetData("/a", b"z", 2),
            operation,
        )
    assert raised.value.index == 7
    assert isinstance(raised.value.__cause__, error)
    assert contents(driver.tree) == before


def test_a_failed_transaction_uses_no_zxid() -> None:
    driver = Driver()
    with pytest.raises(MultiError):
        driver.do(Delete("/missing"))
    assert driver.tree.last_zxid == 1
    driver.do(Create("/a"))
    assert driver.tree.get("/a")[1].czxid == 2


def test_sequence_numbers_count_creations_and_never_come_back() -> None:
    driver = Driver()
    driver.do(Create("/queue"), Create("/queue/plain"))
    names = driver.do(*[Create("/queue/n_", sequential=True)] * 2).results
    assert names == ["/queue/n_0000000001", "/queue/n_0000000002"]
    driver.do(Delete("/queue/n_0000000002"))
    assert driver.do(Create("/queue/n_", sequential=True)).results == ["/queue/n_0000000003"]


def test_cversion_counts_creations_and_deletions() -> None:
    driver = Driver()
    driver.do(Create("/a"))
    driver.do(Create("/a/1"), Create("/a/2"), Delete("/a/1"))
    assert driver.tree.get("/a")[1].cversion == 3
    assert driver.tree.get("/a")[1].num_children == 1


def test_a_sessions_end_deletes_its_ephemerals_only() -> None:
    driver = Driver()
    other = driver.open()
    driver.do(Create("/mine", ephemeral=True), Create("/lasting"))
    driver.do(Create("/others", ephemeral=True), session=other)
    assert driver.tree.get("/mine")[1].ephemeral_owner == driver.session
    applied = driver.tree.apply(CloseSession(driver.session), driver.tree.last_zxid + 1, 0)
    assert driver.tree.children("/")[0] == ["lasting", "others"]
    assert applied.events == [WatchEvent(EventType.DELETED, "/mine"), WatchEvent(EventType.CHILDREN_CHANGED, "/")]
    with pytest.raises(SessionExpiredError):
        driver.do(Create("/late"))
    assert driver.tree.sessions == [other]


def test_a_deleted_ephemeral_is_forgotten_by_its_session() -> None:
    driver = Driver()
    driver.do(Create("/mine", ephemeral=True))
    driver.do(Delete("/mine"), Create("/mine"))
    driver.tree.apply(CloseSession(driver.session), driver.tree.last_zxid + 1, 0)
    assert driver.tree.exists("/mine") is not None


def test_events_name_the_node_and_its_parent() -> None:
    driver = Driver()
    applied = driver.do(Create("/a"), SetData("/a", b"x"), Delete("/a"))
    assert applied.events == [
        WatchEvent(EventType.CREATED, "/a"),
        WatchEvent(EventType.CHILDREN_CHANGED, "/"),
        WatchEvent(EventType.DATA_CHANGED, "/a"),
        WatchEvent(EventType.DELETED, "/a"),
        WatchEvent(EventType.CHILDREN_CHANGED, "/"),
    ]


@pytest.mark.parametrize(
    "path", ["", "a", "/a/", "//", "/a//b", "/./a", "/a/..", "/a\0", "/a\n", "/\ud800", "/a\uf8ff"]
)
def test_malformed_paths_are_refused(path: str) -> None:
    with pytest.raises(BadArgumentsError):
        validate_path(path)


@pytest.mark.parametrize("path", ["/", "/a", "/a/b.c", "/<default>", "/...", "/topic-1_2", "/a%20b"])
def test_usual_paths_are_accepted(path: str) -> None:
    validate_path(path)


PATHS = st.sampled_from(["/a", "/b", "/a/x", "/a/y", "/a/x/z"])
VERSIONS = st.sampled_from([-1, -1, 0, 1])
OPERATIONS: st.SearchStrategy[Operation] = st.one_of(
    st.builds(Create, PATHS, st.none() | st.binary(max_size=3), st.booleans(), st.booleans()),
    st.builds(SetData, PATHS, st.none() | st.binary(max_size=3), VERSIONS),
    st.builds(Delete, PATHS, VERSIONS),
    st.builds(Check, PATHS, VERSIONS),
)


@given(st.lists(st.lists(OPERATIONS, min_size=1, max_size=6), max_size=12))
def test_transactions_are_atomic_and_children_agree_with_paths(transactions: list[list[Operation]]) -> None:
    driver = Driver()
    for operations in transactions:
        before = contents(driver.tree)
        try:
            driver.do(*operations)
        except MultiError:
            assert contents(driver.tree) == before
    paths = [path for path, _ in driver.tree.nodes()]
    for path, node in driver.tree.nodes():
        prefix = path.rstrip("/") + "/"
        below = {other[len(prefix) :] for other in paths if other.startswith(prefix) and other != "/"}
        assert {name for name in below if "/" not in name} == (node.children or set())
    driver.tree.apply(CloseSession(driver.session), driver.tree.last_zxid + 1, 0)
    assert all(node.ephemeral_owner == 0 for _, node in driver.tree.nodes())
