"""Servers that close a session's connection: the reason is found and logged."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from broker.zookeeper.server_status import refusal
from tests.kit.coordination_fixtures import in_loop
from tests.kit.waiting import eventually_on_loop
from tests.kit.zookeeper import new_session, new_zookeeper, start_zookeeper, without_quorum
from zookeeper.coordination import ConnectionLossError

SERVING = "Zookeeper version: 3.9.3\nZxid: 0x{:x}\nMode: {}\nNode count: 5\n"


@pytest.mark.parametrize(
    ("answer", "seen_zxid", "reason"),
    [
        (SERVING.format(0x1F, "standalone"), 0x1F, ""),
        (SERVING.format(0x1F, "leader"), 0x20, "is at zxid 0x1f, before 0x20, which this broker has seen"),
        (SERVING.format(0xFFFFFFFF, "read-only"), 0, "is read-only, as it has no quorum"),
        ("This ZooKeeper instance is not currently serving requests\n", 0, "has no quorum"),
        ("HTTP/1.1 400 Bad Request\r\n", 5, ""),
        ("", 5, ""),
    ],
)
def test_what_a_server_says(answer: str, seen_zxid: int, reason: str) -> None:
    said = refusal(answer, seen_zxid)
    assert said.startswith(reason)
    assert bool(said) == bool(reason)


@pytest.mark.slow
@pytest.mark.java
@in_loop
async def test_data_that_were_set_back(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The session can never be resumed: ZooKeeper refuses clients that have seen a newer zxid than its last one."""
    before = new_zookeeper(tmp_path / "before")
    restored = new_zookeeper(tmp_path / "restored", port=before.port)
    try:
        await asyncio.to_thread(start_zookeeper, before)
        session = new_session(before.address, session_timeout_ms=2000)
        await session.connect()
        for number in range(20):
            await session.create(f"/{number}")
        await asyncio.to_thread(before.kill)
        await asyncio.to_thread(start_zookeeper, restored)
        await eventually_on_loop("the reason is said", lambda: "its data are older" in caplog.text, pause_s=0.05)
        assert f"127.0.0.1:{before.port} is at zxid 0x" in caplog.text
        # After restoring the data, it continues.
        await asyncio.to_thread(restored.kill)
        await asyncio.to_thread(start_zookeeper, before)
        assert await session.exists("/19") is not None
        await session.close()
    finally:
        before.kill()
        restored.kill()


@pytest.mark.slow
@pytest.mark.java
@pytest.mark.parametrize(
    ("read_only", "reason"), [(True, "is read-only, as it has no quorum"), (False, "has no quorum")]
)
@in_loop
async def test_an_ensemble_without_a_quorum(read_only: bool, reason: str, tmp_path: Path) -> None:
    with without_quorum(tmp_path, read_only=read_only) as address:
        words = ""
        while reason not in words:  # finding the reason takes a while; the test has a time limit
            with pytest.raises(ConnectionLossError) as caught:
                await new_session(address, connection_timeout_ms=500).connect()
            words = str(caught.value)
    assert f"No ZooKeeper answered at {address} within 500 ms" in words
    assert f"{address} {reason}" in words
