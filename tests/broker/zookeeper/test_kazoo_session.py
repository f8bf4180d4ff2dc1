"""A session over kazoo with trouble in the connection, the event loop, or the server.

The server is a real ZooKeeper, or the embedded tree served as one.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from broker.zookeeper.kazoo_session import KazooCoordination
from tests.kit.coordination_fixtures import in_loop
from tests.kit.network.cutting_proxy import CuttingProxy
from tests.kit.waiting import eventually, eventually_async, eventually_on_loop
from tests.kit.zookeeper import new_session, real_zookeeper, served_tree
from tests.kit.zookeeper_process import ZookeeperProcess
from tests.simulation.cluster.cluster_mutants import PROCESS_MUTANTS
from zookeeper.coordination import (
    BadArgumentsError,
    ConnectionLossError,
    EventType,
    NodeExistsError,
    SessionExpiredError,
    SessionState,
    WatchEvent,
)


@pytest.fixture(scope="module", params=["served tree", pytest.param("ZooKeeper", marks=pytest.mark.java)])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZookeeperProcess]:
    serve = served_tree if request.param == "served tree" else real_zookeeper
    with serve(tmp_path_factory.mktemp("server")) as running:
        yield running


def some_chroot() -> str:
    return f"/{secrets.token_hex(8)}"


@asynccontextmanager
async def sessions(
    server: ZookeeperProcess, session_timeout_ms: int = 6000
) -> AsyncIterator[tuple[CuttingProxy, KazooCoordination, KazooCoordination]]:
    """A proxy, a session through it, and a session with the same tree that bypasses it."""
    proxy = CuttingProxy(server.port)
    chroot = some_chroot()
    through = new_session(f"127.0.0.1:{await proxy.start()}{chroot}", session_timeout_ms=session_timeout_ms)
    beside = new_session(f"{server.address}{chroot}")
    await through.connect()
    await beside.connect()
    try:
        yield proxy, through, beside
    finally:
        proxy.lets_in = True
        for session in (through, beside):
            try:
                await session.close()
            except SessionExpiredError:
                continue
        await proxy.close()


# -- beginning ---------------------------------------------------------------------------------------------------------


@in_loop
async def test_the_chroot_is_made_and_hidden(server: ZookeeperProcess) -> None:
    chroot = f"{some_chroot()}/b/c"
    session, root = new_session(f"{server.address}{chroot}"), new_session(server.address)
    await session.connect()
    await root.connect()
    assert (await session.create("/a"))[0] == "/a"
    assert (await session.multi([]), (await root.children(chroot))[0]) == ([], ["a"])
    events: list[WatchEvent] = []
    await session.children("/", events.append)
    await session.get("/a", events.append)
    await root.delete(f"{chroot}/a")
    await eventually_async("the deletion is seen", lambda: session.exists("/a"), lambda stat: stat is None)
    assert events == [WatchEvent(EventType.DELETED, "/a"), WatchEvent(EventType.CHILDREN_CHANGED, "/")]
    await session.close()
    await root.close()


@in_loop
async def test_nobody_there_is_said_with_the_servers_and_the_reason() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        session = new_session(f"127.0.0.1:{port},127.0.0.1:{port}/kafka", connection_timeout_ms=300)
        with pytest.raises(ConnectionLossError) as caught:
            await session.connect()
    message = str(caught.value)
    assert f"at 127.0.0.1:{port},127.0.0.1:{port} within 300 ms" in message
    assert "Connection refused" in message
    with pytest.raises(SessionExpiredError):
        await session.exists("/")
    eventually("kazoo's thread ends", no_kazoo_threads)


@in_loop
async def test_an_unknown_host_is_named() -> None:
    session = new_session("no-such-host.invalid:2181", connection_timeout_ms=1000)
    with pytest.raises(ConnectionLossError, match=r"Cannot resolve no-such-host\.invalid"):
        await session.connect()
    await eventually_on_loop("kazoo's thread ends", no_kazoo_threads)


@pytest.mark.parametrize(
    ("garbage", "reason"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "what answers there is not a ZooKeeper"),
        (b"\0\0\0\x04oops", "invalid server response"),
        (b"\xff\xff\xff\xff", "invalid server response"),
        (b"", "connection"),
    ],
)
@in_loop
async def test_garbage_is_told_from_zookeeper(garbage: bytes, reason: str) -> None:
    async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(garbage)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as listening:
        port = listening.sockets[0].getsockname()[1]
        session = new_session(f"127.0.0.1:{port}", connection_timeout_ms=500)
        with pytest.raises(ConnectionLossError, match=reason):
            await session.connect()
        await eventually_on_loop("kazoo's thread ends", no_kazoo_threads, pause_s=0.01)


def no_kazoo_threads() -> bool:
    return not [each for each in threading.enumerate() if "zk_loop" in each.name]


# -- connections that are lost -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("took_effect", [False, True])
@in_loop
async def test_a_write_whose_connection_is_lost_has_an_unknown_outcome(
    server: ZookeeperProcess, took_effect: bool
) -> None:
    async with sessions(server) as (proxy, session, beside):
        states: list[SessionState] = []
        session.add_session_listener(states.append)
        if took_effect:
            proxy.cut_after_next_request()
        else:
            proxy.cut_before_next_request()
        with pytest.raises(ConnectionLossError, match="/a"):
            await session.create("/a", b"x", ephemeral=True)
        stat = await session.exists("/a")
        assert (stat is not None) is took_effect
        if stat is not None:
            assert stat.ephemeral_owner == session.session_id
        assert states == [SessionState.SUSPENDED, SessionState.CONNECTED]
        assert (await beside.exists("/a")) == stat


@in_loop
async def test_a_read_is_asked_again_and_a_call_made_meanwhile_waits(server: ZookeeperProcess) -> None:
    async with sessions(server) as (proxy, session, _beside):
        await session.create("/a", b"x")
        proxy.cut_after_next_request()
        proxy.lets_in = False
        states: list[SessionState] = []
        session.add_session_listener(states.append)
        reading = asyncio.ensure_future(session.get("/a"))
        await eventually_on_loop("the connection is lost", lambda: states)
        writing = asyncio.ensure_future(session.set("/a", b"y"))
        proxy.lets_in = True
        assert (await writing).version == 1
        assert (await reading)[0] in {b"x", b"y"}


@in_loop
async def test_watches_outlive_a_lost_connection(server: ZookeeperProcess) -> None:
    async with sessions(server) as (proxy, session, beside):
        for path in ("/changed", "/gone", "/still", "/parent"):
            await session.create(path)
        events: list[WatchEvent] = []
        states: list[SessionState] = []
        session.add_session_listener(states.append)
        for path in ("/changed", "/gone", "/still"):
            await session.get(path, events.append)
        await session.exists("/come", events.append)
        await session.exists("/absent", events.append)
        await session.children("/parent", events.append)
        await session.children("/still", events.append)
        proxy.lets_in = False
        proxy.cut()
        await eventually_on_loop("the connection is lost", lambda: states)
        await beside.set("/changed", b"")
        await beside.delete("/gone")
        await beside.create("/come")
        await beside.create("/parent/child")
        proxy.lets_in = True
        # The first read after the reconnect: watches must have fired before it can show their changes.
        await session.exists("/parent/child")
        assert sorted(events, key=lambda event: event.path) == [
            WatchEvent(EventType.DATA_CHANGED, "/changed"),
            WatchEvent(EventType.CREATED, "/come"),
            WatchEvent(EventType.DELETED, "/gone"),
            WatchEvent(EventType.CHILDREN_CHANGED, "/parent"),
        ]
        del events[:]
        await beside.set("/still", b"")
        await beside.create("/absent")
        await beside.create("/still/child")
        await eventually_async("the last change is seen", lambda: session.exists("/still/child"))
        assert events == [
            WatchEvent(EventType.DATA_CHANGED, "/still"),
            WatchEvent(EventType.CREATED, "/absent"),
            WatchEvent(EventType.CHILDREN_CHANGED, "/still"),
        ]


@in_loop
async def test_thousands_of_watches_outlive_a_lost_connection(server: ZookeeperProcess) -> None:
    """Their paths need several SetWatches requests."""
    async with sessions(server) as (proxy, session, beside):
        events: list[WatchEvent] = []
        paths = [f"/{'long' * 20}-{number}" for number in range(4000)]
        await asyncio.gather(*(session.exists(path, events.append) for path in paths))
        proxy.cut()
        for path in (paths[0], paths[-1]):
            await beside.create(path)
        await eventually_async("the last node is seen", lambda: session.exists(paths[-1]))
        await eventually_on_loop("both have fired", lambda: len(events) == 2)
        assert {event.path for event in events} == {paths[0], paths[-1]}


# -- the end of a session ----------------------------------------------------------------------------------------------


async def expect_the_end(session: KazooCoordination, events: list[WatchEvent], states: list[SessionState]) -> None:
    await eventually_on_loop("the session ends", lambda: SessionState.EXPIRED in states, pause_s=0.01)
    assert events == [WatchEvent(EventType.SESSION_EXPIRED, "/a")]
    with pytest.raises(SessionExpiredError):
        await session.exists("/a")
    with pytest.raises(SessionExpiredError):
        await session.set("/a", b"")


@in_loop
async def test_a_session_that_was_away_too_long_has_expired(server: ZookeeperProcess) -> None:
    async with sessions(server, session_timeout_ms=1000) as (proxy, session, beside):
        events: list[WatchEvent] = []
        states: list[SessionState] = []
        session.add_session_listener(states.append)
        await session.create("/a", ephemeral=True)
        await session.get("/a", events.append)
        proxy.lets_in = False
        proxy.cut()
        await eventually_async("its node is gone", lambda: beside.exists("/a"), lambda stat: stat is None)
        waiting = asyncio.ensure_future(session.create("/b"))
        connections = proxy.connections
        proxy.lets_in = True
        await expect_the_end(session, events, states)
        with pytest.raises(SessionExpiredError):
            await waiting
        # kazoo would start a second session by itself, whose nodes no one would know.
        await eventually_on_loop("kazoo's thread ends", one_kazoo_thread_is_left, pause_s=0.01)
        assert proxy.connections == connections + 1


def one_kazoo_thread_is_left() -> bool:
    return len([each for each in threading.enumerate() if "zk_loop" in each.name]) == 1


@in_loop
async def test_a_loop_that_is_stuck_loses_its_session_before_it_turns_again(server: ZookeeperProcess) -> None:
    """Trap M27: kazoo's own thread would keep the session alive forever."""
    gone_after: list[float] = []
    chroot = some_chroot()

    def watch_from_outside(began: threading.Event) -> None:
        async def watch() -> None:
            other = new_session(f"{server.address}{chroot}", session_timeout_ms=20_000)
            await other.connect()
            assert await other.exists("/a") is not None
            began.set()
            start = time.monotonic()
            await eventually_async(
                "the node is gone", lambda: other.exists("/a"), lambda stat: stat is None, pause_s=0.01
            )
            gone_after.append(time.monotonic() - start)
            await other.close()

        asyncio.run(watch())

    session = new_session(f"{server.address}{chroot}", session_timeout_ms=4000)
    await session.connect()
    events: list[WatchEvent] = []
    states: list[SessionState] = []
    session.add_session_listener(states.append)
    await session.create("/a", ephemeral=True)
    await session.get("/a", events.append)
    began = threading.Event()
    observer = threading.Thread(target=watch_from_outside, args=(began,))
    observer.start()
    await eventually_on_loop("the observer has begun", began.is_set, pause_s=0.01)
    observer.join()  # the loop is blocked
    assert gone_after[0] < 3.9
    await expect_the_end(session, events, states)


@in_loop
async def test_a_loop_that_was_stopped_ends_its_session_itself() -> None:
    """As after SIGSTOP and SIGCONT: both threads resume at once, and the loop may be the first to notice."""
    from broker.zookeeper.kazoo_handler import LoopPulse

    gaps: list[bool] = []
    pulse = LoopPulse(asyncio.get_running_loop(), 0.08, lambda: gaps.append(True))
    await asyncio.sleep(0.2)
    assert gaps == []
    assert not pulse.has_stopped()
    time.sleep(0.2)  # noqa: ASYNC251 - the loop is to be stuck
    assert pulse.has_stopped()
    await eventually_on_loop("the gap is seen", lambda: gaps)
    pulse.stop()


def test_a_stuck_loop_that_nobody_notices_is_found() -> None:
    with PROCESS_MUTANTS["stuck-loops-not-noticed"](), pytest.raises(AssertionError):
        test_a_loop_that_was_stopped_ends_its_session_itself()


@in_loop
async def test_closing_while_nobody_is_there_takes_no_time(server: ZookeeperProcess) -> None:
    async with sessions(server) as (proxy, session, _beside):
        states: list[SessionState] = []
        session.add_session_listener(states.append)
        proxy.lets_in = False
        proxy.cut()
        await eventually_on_loop("the connection is lost", lambda: states)
        await asyncio.wait_for(session.close(), 3)
        assert states == [SessionState.SUSPENDED, SessionState.EXPIRED]


# -- limits and noise --------------------------------------------------------------------------------------------------


@in_loop
async def test_what_zookeeper_would_hang_up_on_is_refused(server: ZookeeperProcess) -> None:
    async with sessions(server) as (_proxy, session, _beside):
        with pytest.raises(BadArgumentsError, match=r"jute\.maxbuffer"):
            await session.create("/a", bytes(1_100_000))
        from zookeeper.coordination import Create

        with pytest.raises(BadArgumentsError, match=r"jute\.maxbuffer"):
            await session.multi([Create(f"/{number}", bytes(1000)) for number in range(1100)])
        largest = session.max_transaction_bytes // (64 + 10)
        paths = [f"/a{number:08d}" for number in range(largest - 1)]
        await session.create("/0", bytes(session.max_transaction_bytes - 100))
        await session.multi([Create(path) for path in paths])
        assert len((await session.children("/"))[0]) == largest


@in_loop
async def test_a_session_is_silent_and_its_changes_of_state_are_logged(
    server: ZookeeperProcess, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with sessions(server) as (proxy, session, _beside):
        proxy.cut_before_next_request()
        with pytest.raises(ConnectionLossError):
            await session.create("/a")
        await session.create("/a")
        with pytest.raises(NodeExistsError):
            await session.create("/a")
    records = [record for record in caplog.records if record.name != "asyncio"]
    assert {record.name for record in records} == {"kafka.zookeeper.ZooKeeperClient"}
    changes = [
        record.getMessage() for record in records if record.levelno > logging.INFO or "again" in record.getMessage()
    ]
    assert [message.partition(" at ")[0] for message in changes] == [
        "The connection to ZooKeeper",
        "Connected to ZooKeeper",
    ]
    assert "is lost: " in changes[0]
