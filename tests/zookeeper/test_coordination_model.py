"""The same random calls to the embedded tree in process, served over the network, and to a real ZooKeeper: answers,
errors and events must be equal.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from protocol.value import Value
from tests.kit.coordination_fixtures import Machine
from tests.kit.zookeeper import new_session, real_zookeeper, served_tree
from zookeeper.coordination import (
    Check,
    Coordination,
    CoordinationError,
    Create,
    Delete,
    MultiError,
    Operation,
    SetData,
    WatchEvent,
    ZnodeStat,
)

pytestmark = [pytest.mark.timeout(600)]

SHORT_EXAMPLES = 40
LONG_EXAMPLES = 400
MOST_CALLS = 40
LEAST_CALLS = 26
"""400 examples of at least 26 calls are more than 10,000."""

PATHS = st.sampled_from(["/a", "/b", "/a/x", "/a/y", "/a/x/1", "/none/x", "/"])
DATA = st.sampled_from([None, b"", b"one", b"four"])
VERSIONS = st.sampled_from([-1, -1, -1, 0, 1, 2])


class Read(Value):
    """A call of get, exists or children, with or without a watch."""

    kind: str
    path: str
    watched: bool


class ReadEach(Value):
    """A call of get_each."""

    paths: tuple[str, ...]


OPERATIONS: st.SearchStrategy[Operation] = st.one_of(
    st.builds(Create, PATHS, DATA, st.booleans(), st.just(False)),
    st.builds(Create, PATHS.map(lambda path: f"{path}/s_".replace("//", "/")), DATA, st.booleans(), st.just(True)),
    st.builds(SetData, PATHS, DATA, VERSIONS),
    st.builds(Delete, PATHS, VERSIONS),
)
CHECKS = st.builds(Check, PATHS, VERSIONS)
BAD_PATHS = st.sampled_from(["", "a", "/a/", "//", "/a/./b", "/a/../b", "/a\x01"])
CALLS: st.SearchStrategy[Any] = st.one_of(
    OPERATIONS,
    OPERATIONS,
    st.builds(Read, st.sampled_from(["get", "exists", "children"]), PATHS | BAD_PATHS, st.booleans()),
    st.builds(Read, st.sampled_from(["get", "exists", "children"]), PATHS, st.booleans()),
    st.builds(ReadEach, st.lists(PATHS, min_size=1, max_size=4).map(tuple)),
    # ZooKeeper's own client, too, refuses to delete the root before it tries the preceding operations.
    st.lists(
        (OPERATIONS | CHECKS).filter(lambda each: not isinstance(each, Delete) or each.path != "/"),
        min_size=1,
        max_size=5,
    ),
    st.builds(Create, BAD_PATHS),
)


class Subject:
    """One implementation: executes calls and records their results."""

    def __init__(self, session: Coordination) -> None:
        self.session = session
        self.events: list[WatchEvent] = []

    async def answer(self, call: Any) -> Any:
        """The answer as a caller sees it, without the parts that differ between trees."""
        try:
            return plain(await self._carry_out(call))
        except MultiError as error:
            return "multi", error.index, type(error.__cause__).__name__
        except CoordinationError as error:
            return type(error).__name__

    async def _carry_out(self, call: Any) -> Any:
        match call:
            case Create(path, data, ephemeral, sequential):
                return await self.session.create(path, data, ephemeral=ephemeral, sequential=sequential)
            case SetData(path, data, version):
                return await self.session.set(path, data, version)
            case Delete(path, version):
                return await self.session.delete(path, version)
            case Read(kind, path, watched):
                return await getattr(self.session, kind)(path, self.events.append if watched else None)
            case ReadEach(paths):
                return await self.session.get_each(paths)
        return await self.session.multi(call)


def plain(answer: Any) -> Any:
    if isinstance(answer, ZnodeStat):
        return (
            answer.version,
            answer.cversion,
            answer.data_length,
            answer.num_children,
            answer.ephemeral_owner != 0,
            answer.czxid == answer.mzxid,
            answer.czxid == answer.pzxid,
        )
    return [plain(each) for each in answer] if isinstance(answer, list | tuple) else answer


@pytest.fixture(scope="module", params=["served tree", pytest.param("ZooKeeper", marks=pytest.mark.java)])
def address(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    serve = served_tree if request.param == "served tree" else real_zookeeper
    with serve(tmp_path_factory.mktemp("server")) as server:
        yield server.address


async def compare(address: str, calls: list[Any]) -> int:
    ensemble = Machine().open()
    # On a busy machine a session of a few seconds may end between two calls.
    other = new_session(f"{address}/{secrets.token_hex(8)}", session_timeout_ms=30_000)
    ours, theirs = Subject(ensemble.session()), Subject(other)
    await ours.session.connect()
    await theirs.session.connect()
    try:
        # A tree's own root is empty; a new chroot, which replaces it here, is null.
        await ours.session.set("/", b"")
        await theirs.session.set("/", b"")
        for number, call in enumerate(calls):
            expected = await theirs.answer(call)
            assert await ours.answer(call) == expected, (number, call)
            assert ours.events == theirs.events, (number, call)
    finally:
        await theirs.session.close()
        await ours.session.close()
    return len(calls)


def play(address: str, examples: int) -> int:
    """Compare that many sequences of calls; returns the number of calls."""
    played = 0

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.lists(CALLS, min_size=LEAST_CALLS, max_size=MOST_CALLS))
    def every_sequence_ends_alike(calls: list[Any]) -> None:
        nonlocal played
        played += asyncio.run(compare(address, calls))

    every_sequence_ends_alike()
    return played


def test_a_thousand_calls_are_answered_alike(address: str) -> None:
    assert play(address, SHORT_EXAMPLES) >= 1000


@pytest.mark.slow
def test_ten_thousand_calls_are_answered_alike(address: str) -> None:
    assert play(address, LONG_EXAMPLES) >= 10_000
