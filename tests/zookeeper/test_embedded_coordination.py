"""Sessions, watches and group commit over the embedded tree: the guarantees of `zookeeper.coordination`."""

from __future__ import annotations

import asyncio
import errno

import pytest

from tests.kit.coordination_fixtures import Machine, in_loop
from tests.kit.memory_file_system import Fault
from tests.kit.waiting import turns
from zookeeper.coordination import (
    BadVersionError,
    ConnectionLossError,
    Create,
    Delete,
    EventType,
    MultiError,
    NodeExistsError,
    NoNodeError,
    NoSpaceError,
    SessionExpiredError,
    SessionState,
    SetData,
    WatchEvent,
    ZnodeStat,
)


@in_loop
async def test_the_calls_do_what_they_say() -> None:
    session = Machine().open().session()
    await session.connect()
    path, stat = await session.create("/a", b"1")
    assert path == "/a"
    assert (await session.get("/a")) == (b"1", stat)
    changed = await session.set("/a", b"22", 0)
    assert (changed.version, changed.data_length) == (1, 2)
    assert (await session.create("/a/s_", sequential=True))[0] == "/a/s_0000000000"
    assert (await session.children("/a"))[0] == ["s_0000000000"]
    await session.delete("/a/s_0000000000")
    assert await session.exists("/a/s_0000000000") is None
    created, stat_of_b, deleted = await session.multi([Create("/b"), SetData("/b", b"x"), Delete("/b")])
    assert created == "/b"
    assert isinstance(stat_of_b, ZnodeStat)
    assert deleted is None


@in_loop
async def test_single_operations_fail_with_their_own_error_and_multis_say_where() -> None:
    session = Machine().open().session()
    await session.connect()
    await session.create("/a")
    with pytest.raises(NodeExistsError):
        await session.create("/a")
    with pytest.raises(BadVersionError):
        await session.set("/a", b"", 4)
    with pytest.raises(NoNodeError):
        await session.delete("/b")
    with pytest.raises(NoNodeError):
        await session.get("/b")
    with pytest.raises(MultiError) as raised:
        await session.multi([Create("/c"), Delete("/b")])
    assert raised.value.index == 1
    assert await session.exists("/c") is None


@in_loop
async def test_a_watch_fires_once_when_the_change_can_be_read() -> None:
    session = Machine().open().session()
    await session.connect()
    await session.create("/a")
    events: list[WatchEvent] = []
    await session.get("/a", events.append)
    await session.children("/a", events.append)
    await session.exists("/later", events.append)
    await session.set("/a", b"1")
    assert events == [WatchEvent(EventType.DATA_CHANGED, "/a")]
    await session.set("/a", b"2")
    await session.create("/a/child")
    await session.create("/later")
    assert events[1:] == [WatchEvent(EventType.CHILDREN_CHANGED, "/a"), WatchEvent(EventType.CREATED, "/later")]


@in_loop
async def test_a_full_disk_refuses_changes_and_nothing_else() -> None:
    machine = Machine()
    session = machine.open().session()
    await session.connect()
    await session.create("/a", b"old")
    machine.disk.inject = lambda operation, _path: Fault(errno=errno.ENOSPC) if operation == "append" else None
    refused = await asyncio.gather(
        session.set("/a", b"new"), session.create("/b"), session.multi([Delete("/a")]), return_exceptions=True
    )
    assert [type(error) for error in refused] == [NoSpaceError] * 3
    assert (await session.get("/a"))[0] == b"old"
    assert machine.failures == []
    machine.disk.inject = lambda _operation, _path: None
    await session.set("/a", b"new")
    assert (await session.get("/a"))[0] == b"new"


@in_loop
async def test_the_same_watch_on_data_and_children_hears_of_a_deletion_once() -> None:
    session = Machine().open().session()
    await session.connect()
    await session.create("/a")
    events: list[WatchEvent] = []
    watch = events.append
    await session.get("/a", watch)
    await session.children("/a", watch)
    await session.delete("/a")
    assert events == [WatchEvent(EventType.DELETED, "/a")]


@in_loop
async def test_a_failed_read_leaves_no_watch() -> None:
    session = Machine().open().session()
    await session.connect()
    events: list[WatchEvent] = []
    with pytest.raises(NoNodeError):
        await session.get("/a", events.append)
    await session.create("/a")
    assert events == []


@in_loop
async def test_nothing_is_seen_before_it_is_durable() -> None:
    machine = Machine()
    ensemble = machine.open()
    session, other = ensemble.session(), ensemble.session()
    await session.connect()
    await other.connect()
    events: list[WatchEvent] = []
    await other.exists("/a", events.append)
    machine.executor.held = True
    writing = asyncio.ensure_future(session.create("/a"))
    await turns()
    reading = asyncio.ensure_future(other.exists("/a"))
    await turns()
    assert not writing.done()
    assert not reading.done()
    assert events == []
    machine.executor.release()
    assert (await writing)[0] == "/a"
    assert await reading is not None
    assert events == [WatchEvent(EventType.CREATED, "/a")]


@in_loop
async def test_transactions_that_wait_for_the_disk_share_one_fsync() -> None:
    machine = Machine()
    session = machine.open().session()
    await session.connect()
    machine.executor.held = True
    first = asyncio.ensure_future(session.create("/first"))
    await turns()
    rest = [asyncio.ensure_future(session.create(f"/{number}")) for number in range(50)]
    await turns()
    before = machine.executor.runs
    machine.executor.release()
    await asyncio.gather(first, *rest)
    assert machine.executor.runs - before == 2


@in_loop
async def test_reads_of_an_idle_tree_do_not_touch_the_disk() -> None:
    machine = Machine()
    session = machine.open().session()
    await session.connect()
    before = machine.executor.runs
    await session.children("/")
    await session.exists("/a")
    with pytest.raises(NoNodeError):
        await session.delete("/a")
    assert machine.executor.runs == before


@in_loop
async def test_a_caller_that_gives_up_harms_nobody() -> None:
    machine = Machine()
    session = machine.open().session()
    await session.connect()
    machine.executor.held = True
    first = asyncio.ensure_future(session.create("/first"))
    second = asyncio.ensure_future(session.create("/second"))
    await turns()
    first.cancel()
    await turns()
    machine.executor.release()
    await second
    assert await session.exists("/first") is not None


@in_loop
async def test_a_session_takes_its_ephemerals_and_watches_along() -> None:
    ensemble = Machine().open()
    leaving, staying = ensemble.session(), ensemble.session()
    states: list[SessionState] = []
    leaving.add_session_listener(states.append)
    await leaving.connect()
    await staying.connect()
    assert leaving.session_id != staying.session_id
    await leaving.create("/mine", ephemeral=True)
    seen_by_leaving: list[WatchEvent] = []
    seen_by_staying: list[WatchEvent] = []
    await leaving.get("/mine", seen_by_leaving.append)
    await staying.get("/mine", seen_by_staying.append)
    await leaving.close()
    assert seen_by_staying == [WatchEvent(EventType.DELETED, "/mine")]
    assert seen_by_leaving == []
    assert states == [SessionState.CONNECTED, SessionState.EXPIRED]
    with pytest.raises(SessionExpiredError):
        await leaving.exists("/mine")


@in_loop
async def test_a_new_process_finds_the_tree_without_the_old_ephemerals() -> None:
    machine = Machine()
    session = machine.open().session()
    await session.connect()
    await session.multi([Create("/kept", b"x"), Create("/gone", ephemeral=True)])
    machine.disk.kill_process()
    again = machine.open()
    session = again.session()
    await session.connect()
    assert (await session.children("/"))[0] == ["kept"]


@in_loop
async def test_a_failed_journal_fails_everything_and_says_so_once() -> None:
    machine = Machine()
    session = machine.open().session()
    await session.connect()
    machine.disk.inject = lambda operation, _path: Fault(errno=errno.EIO) if operation == "flush" else None
    results = await asyncio.gather(session.create("/a"), session.create("/b"), return_exceptions=True)
    assert [type(result) for result in results] == [ConnectionLossError, ConnectionLossError]
    assert len(machine.failures) == 1
    machine.disk.inject = lambda _operation, _path: None
    with pytest.raises(ConnectionLossError):
        await session.exists("/a")


@in_loop
async def test_a_watch_that_raises_is_logged_and_stops_nobody(caplog: pytest.LogCaptureFixture) -> None:
    session = Machine().open().session()
    await session.connect()

    def broken(event: WatchEvent) -> None:
        raise ValueError(event.path)

    await session.exists("/a", broken)
    await session.create("/a")
    await session.create("/b")
    assert "A watch on /a failed" in caplog.text


@in_loop
async def test_closing_the_ensemble_finishes_what_was_begun() -> None:
    machine = Machine()
    ensemble = machine.open()
    session = ensemble.session()
    await session.connect()
    writing = asyncio.ensure_future(session.create("/a"))
    await asyncio.sleep(0)
    await ensemble.close()
    assert (await writing)[0] == "/a"
