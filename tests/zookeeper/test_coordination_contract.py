"""The guarantees of `zookeeper.coordination`, for the embedded tree in process and served, for ZooKeeper and
for the simulation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from tests.kit.waiting import eventually_async
from tests.kit.zookeeper import real_zookeeper, served_tree
from tests.zookeeper.coordination_places import (
    EmbeddedPlace,
    NewSession,
    Place,
    RealPlace,
    Scenario,
    SimulatedPlace,
)
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
    SessionExpiredError,
    SessionState,
    SetData,
    WatchEvent,
    ZnodeStat,
)

READS = 3000


async def calls_do_what_they_say(begin: NewSession) -> None:
    session = await begin()
    path, stat = await session.create("/a", b"1")
    assert path == "/a"
    assert stat.ephemeral_owner == 0
    assert await session.get("/a") == (b"1", stat)
    assert await session.get_each(["/none", "/a", "/a/none"]) == [None, (b"1", stat), None]
    changed = await session.set("/a", b"22", 0)
    assert (changed.version, changed.data_length, changed.czxid) == (1, 2, stat.czxid)
    assert changed.mzxid > stat.mzxid
    assert (await session.create("/a/s_", sequential=True))[0] == "/a/s_0000000000"
    assert (await session.children("/a"))[0] == ["s_0000000000"]
    await session.delete("/a/s_0000000000")
    assert await session.exists("/a/s_0000000000") is None
    mine, stat = await session.create("/mine", ephemeral=True)
    assert (mine, stat.ephemeral_owner) == ("/mine", session.session_id)


async def null_and_empty_data_are_different(begin: NewSession) -> None:
    session = await begin()
    await session.create("/null")
    await session.create("/empty", b"")
    assert (await session.get("/null"))[0] is None
    assert (await session.get("/empty"))[0] == b""
    await session.set("/empty", None)
    assert (await session.get("/empty"))[0] is None
    await session.multi([Create("/multi"), SetData("/null", b"")])
    assert (await session.get("/multi"))[0] is None
    assert (await session.get("/null"))[0] == b""


async def errors_name_the_path(begin: NewSession) -> None:
    session = await begin()
    await session.create("/a")
    await session.create("/a/b")
    await session.create("/mine", ephemeral=True)
    for call, error in (
        (session.create("/a"), NodeExistsError),
        (session.create("/none/b"), NoNodeError),
        (session.create("/mine/b"), NoChildrenForEphemeralsError),
        (session.set("/a", b"", 4), BadVersionError),
        (session.set("/none", b""), NoNodeError),
        (session.delete("/none"), NoNodeError),
        (session.delete("/a"), NotEmptyError),
        (session.delete("/a/b", 7), BadVersionError),
        (session.get("/none"), NoNodeError),
        (session.children("/none"), NoNodeError),
        (session.get("none"), BadArgumentsError),
        (session.exists("/a//b"), BadArgumentsError),
        (session.create("/a/../b"), BadArgumentsError),
        (session.delete("/"), BadArgumentsError),
    ):
        with pytest.raises(error) as caught:
            await call
        assert type(caught.value) is error
        assert "/" in str(caught.value) or "none" in str(caught.value) or "root" in str(caught.value)


async def a_multi_is_all_or_nothing(begin: NewSession) -> None:
    session = await begin()
    created, stat, deleted, checked, sequential = await session.multi(
        [Create("/b", b"1"), SetData("/b", b"x"), Delete("/b"), Check("/", -1), Create("/s", sequential=True)]
    )
    assert (created, deleted, checked, sequential) == ("/b", None, None, "/s0000000001")
    assert isinstance(stat, ZnodeStat)
    assert (stat.version, stat.data_length) == (1, 1)
    with pytest.raises(MultiError) as caught:
        await session.multi([Create("/c"), Create("/d"), Delete("/none"), Create("/e")])
    assert caught.value.index == 2
    assert type(caught.value.__cause__) is NoNodeError
    assert "/none" in str(caught.value)
    with pytest.raises(MultiError) as caught:
        await session.multi([Create("/f"), Check("/s0000000001", 5)])
    assert caught.value.index == 1
    assert type(caught.value.__cause__) is BadVersionError
    assert (await session.children("/"))[0] == ["s0000000001"]
    assert await session.multi([]) == []


async def calls_take_effect_in_their_order(begin: NewSession) -> None:
    session = await begin()
    calls = [session.create("/a", b"-1")]
    asked = [asyncio.ensure_future(call) for call in calls]
    for number in range(100):
        asked.append(asyncio.ensure_future(session.set("/a", str(number).encode(), number)))
        asked.append(asyncio.ensure_future(session.get("/a")))
    answers = await asyncio.gather(*asked)
    read = [int(answer[0]) for answer in answers[2::2]]
    assert read == list(range(100))


async def a_watch_fires_once(begin: NewSession) -> None:
    session, other = await begin(), await begin()
    await session.create("/a")
    events: list[WatchEvent] = []
    await session.get("/a", events.append)
    await session.children("/a", events.append)
    await session.exists("/later", events.append)
    await other.set("/a", b"1")
    await other.set("/a", b"2")
    await other.create("/a/child")
    await other.create("/a/child2")
    await other.create("/later")
    await other.set("/later", b"")
    await eventually_async(
        "the session sees the last change", lambda: session.exists("/later"), lambda s: s and s.version
    )
    assert events == [
        WatchEvent(EventType.DATA_CHANGED, "/a"),
        WatchEvent(EventType.CHILDREN_CHANGED, "/a"),
        WatchEvent(EventType.CREATED, "/later"),
    ]


async def a_deletion_fires_both_kinds_of_watch(begin: NewSession) -> None:
    session = await begin()
    await session.create("/a")
    await session.create("/b")
    data: list[WatchEvent] = []
    children: list[WatchEvent] = []
    both: list[WatchEvent] = []
    watch = both.append
    await session.get("/a", data.append)
    await session.children("/a", children.append)
    await session.get("/b", watch)
    await session.get("/b", watch)
    await session.children("/b", watch)
    await session.delete("/a")
    await session.delete("/b")
    await session.exists("/")
    assert data == [WatchEvent(EventType.DELETED, "/a")]
    assert children == [WatchEvent(EventType.DELETED, "/a")]
    assert both == [WatchEvent(EventType.DELETED, "/b")]


async def a_failed_read_leaves_no_watch(begin: NewSession) -> None:
    session = await begin()
    events: list[WatchEvent] = []
    for call in (session.get("/a", events.append), session.children("/a", events.append)):
        with pytest.raises(NoNodeError):
            await call
    await session.create("/a")
    await session.create("/a/b")
    await session.delete("/a/b")
    await session.delete("/a")
    assert events == []


async def a_watch_that_raises_stops_nobody(begin: NewSession) -> None:
    session = await begin()
    events: list[WatchEvent] = []

    def broken(event: WatchEvent) -> None:
        raise ValueError(event.path)

    await session.exists("/a", broken)
    await session.exists("/a", events.append)
    await session.create("/a")
    await session.exists("/a")
    assert events == [WatchEvent(EventType.CREATED, "/a")]


class Arming:
    """One watch: the node's version when it was set, and whether it has fired."""

    def __init__(self) -> None:
        self.version: int | None = None
        self.has_fired = False

    def fire(self, _event: WatchEvent) -> None:
        self.has_fired = True


async def a_watch_fires_before_a_read_shows_the_change(begin: NewSession) -> None:
    reader, writer = await begin(), await begin()
    await writer.create("/a", b"0")
    arming = Arming()
    reads = changes_shown = 0
    early: list[int] = []

    async def read() -> None:
        nonlocal reads, changes_shown
        _, stat = await reader.get("/a")
        reads += 1
        if arming.version is not None and stat.version > arming.version:
            changes_shown += 1
            if not arming.has_fired:
                early.append(stat.version)

    async def write() -> None:
        while reads < READS:
            await writer.set("/a", b"")

    async def watch() -> None:
        nonlocal arming
        while reads < READS:
            arming = Arming()
            _, stat = await reader.get("/a", arming.fire)
            arming.version = stat.version
            while not arming.has_fired and reads < READS:
                await asyncio.gather(*(read() for _ in range(4)))

    await asyncio.gather(write(), watch())
    assert early == []
    assert changes_shown > READS / 100


async def a_session_takes_its_nodes_and_watches_along(begin: NewSession) -> None:
    leaving, staying = await begin(), await begin()
    assert leaving.session_id != staying.session_id
    states: list[SessionState] = []
    leaving.add_session_listener(states.append)
    await leaving.create("/mine", ephemeral=True)
    of_leaving: list[WatchEvent] = []
    of_staying: list[WatchEvent] = []
    await leaving.get("/mine", of_leaving.append)
    await eventually_async("the node is there", lambda: staying.exists("/mine"))
    await staying.get("/mine", of_staying.append)
    await leaving.close()
    assert states == [SessionState.EXPIRED]
    await eventually_async("the node is gone", lambda: staying.exists("/mine"), lambda stat: stat is None)
    assert of_staying == [WatchEvent(EventType.DELETED, "/mine")]
    assert of_leaving == []
    for call in (leaving.exists("/mine"), leaving.create("/x"), leaving.multi([Create("/x")]), leaving.close()):
        with pytest.raises(SessionExpiredError):
            await call


async def a_caller_that_gives_up_harms_nobody(begin: NewSession) -> None:
    session = await begin()
    first = asyncio.ensure_future(session.create("/first"))
    second = asyncio.ensure_future(session.create("/second"))
    await asyncio.sleep(0)
    first.cancel()
    await second
    assert await session.exists("/first") is not None


SCENARIOS: list[Scenario] = [
    calls_do_what_they_say,
    null_and_empty_data_are_different,
    errors_name_the_path,
    a_multi_is_all_or_nothing,
    calls_take_effect_in_their_order,
    a_watch_fires_once,
    a_deletion_fires_both_kinds_of_watch,
    a_failed_read_leaves_no_watch,
    a_watch_that_raises_stops_nobody,
    a_watch_fires_before_a_read_shows_the_change,
    a_session_takes_its_nodes_and_watches_along,
    a_caller_that_gives_up_harms_nobody,
]


@pytest.fixture(scope="module")
def real_place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with real_zookeeper(tmp_path_factory.mktemp("zookeeper")) as server:
        yield RealPlace(server.address)


@pytest.fixture(scope="module")
def served_place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with served_tree(tmp_path_factory.mktemp("tree")) as server:
        yield RealPlace(server.address)


def name(scenario: Scenario) -> str:
    return getattr(scenario, "__name__", "")


@pytest.mark.parametrize("scenario", SCENARIOS, ids=name)
def test_embedded_tree(scenario: Scenario) -> None:
    EmbeddedPlace().play(scenario)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=name)
def test_simulated_ensemble(scenario: Scenario) -> None:
    SimulatedPlace().play(scenario)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=name)
def test_served_tree(scenario: Scenario, served_place: Place) -> None:
    served_place.play(scenario)


@pytest.mark.java
@pytest.mark.parametrize("scenario", SCENARIOS, ids=name)
def test_real_zookeeper(scenario: Scenario, real_place: Place) -> None:
    real_place.play(scenario)
