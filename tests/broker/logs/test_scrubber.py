"""How fast, and when, the scrub rereads sealed segments."""

from __future__ import annotations

import asyncio

from broker.logs.disk_tasks import FIRST_PASS_MS, Scrubber
from broker.supervisor import Supervisor
from storage.log_config import LogConfig
from storage.log_manager import LogManager
from tests.kit.environment import InlineExecutor, ManualClock
from tests.kit.memory_file_system import MemoryFileSystem
from tests.storage.support import TOPIC_ID, TP, append, open_manager

VALUE = bytes(1000)
YEAR_MS = 365 * 24 * 3_600_000


def filled() -> tuple[LogManager, int]:
    """Logs, and the size of their sealed segments."""
    manager, _ = open_manager(MemoryFileSystem(), LogConfig(segment_bytes=10_000))
    log = manager.get_or_create(TP, TOPIC_ID, manager.default_config, 0)
    for _ in range(100):
        append(log, VALUE)
    return manager, sum(segment.size for segment in log.segments[:-1])


def test_no_faster_than_allowed_and_again_after_the_interval() -> None:
    manager, size = filled()
    clock = ManualClock()
    scrubber = Scrubber(manager, clock, InlineExecutor(), interval_ms=FIRST_PASS_MS * 2, bytes_per_second=2_500)

    async def rounds() -> None:
        await scrubber.round()
        assert scrubber.scrub.checked_bytes == 0, "not before the first pass is due"
        clock.ms += FIRST_PASS_MS
        count = 0
        while scrubber.scrub.last_pass_ended_ms is None:
            await scrubber.round()
            count += 1
            assert scrubber.scrub.checked_bytes <= 2_500 * count + 2 * len(VALUE)
        assert scrubber.scrub.checked_bytes == size
        assert count >= size // 2_500
        await scrubber.round()
        assert scrubber.scrub.checked_bytes == size
        clock.ms += FIRST_PASS_MS * 2
        await scrubber.round()
        assert scrubber.scrub.checked_bytes > size

    asyncio.run(rounds())


def test_the_wall_clock_does_not_put_a_pass_off() -> None:
    manager, size = filled()
    clock = ManualClock()
    scrubber = Scrubber(manager, clock, InlineExecutor(), interval_ms=FIRST_PASS_MS * 2, bytes_per_second=size * 2)

    async def rounds() -> None:
        for passes, wait_ms in enumerate((FIRST_PASS_MS, FIRST_PASS_MS * 2), start=1):
            clock.set_back_ms += YEAR_MS
            clock.ms += wait_ms
            await scrubber.round()
            assert scrubber.scrub.checked_bytes == size * passes
            assert scrubber.scrub.last_pass_ended_ms == clock.now_ms()

    asyncio.run(rounds())


def test_never() -> None:
    manager, _ = filled()
    supervisor = Supervisor()
    scrubber = Scrubber(manager, ManualClock(), InlineExecutor(), interval_ms=-1, bytes_per_second=1)
    scrubber.schedule(supervisor)  # outside of an event loop: it would fail if it had work to do
    assert scrubber.scrub.checked_bytes == 0
