"""Signals of a server process, and its standard streams.

SIGTERM, SIGINT and SIGHUP ask the process to stop, as in Kafka; a second one ends it at once. SIGQUIT prints its
current state on standard output, as the JVM prints its threads, and does not stop it. All of this works while the event
loop is stuck.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import TextIO

logger = logging.getLogger("kafka.Kafka")

REPEATED_S = 0.5
"""A second signal is ignored before this: a terminal and a wrapper script may both send the same one."""


def open_standard_streams() -> None:
    """Open /dev/null for each closed standard stream. Call it before anything else opens a file.

    Otherwise an event loop or a socket gets these descriptors: libuv aborts when it closes one of them, and printed
    text would go to the connected peer.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            # The system assigns the lowest free descriptor.
            os.open(os.devnull, os.O_RDWR)
    if sys.stdout is None:
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - open until the process ends
    if sys.stderr is None:
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115


def handle_signals(stop: Callable[[], None]) -> None:
    """Call `stop` on the running loop at the first signal that asks the process to stop. SIGHUP stays ignored if it
    already is (nohup).
    """
    loop = asyncio.get_running_loop()
    asked_s: list[float] = []

    def ask(_number: int, _frame: FrameType | None) -> None:
        asked_s.append(time.monotonic())
        if len(asked_s) == 1:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(stop)
        elif asked_s[-1] - asked_s[0] > REPEATED_S:
            _end_at_once()

    # Not loop.add_signal_handler: its handlers wait for the loop.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if number is not signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, ask)
    signal.signal(signal.SIGQUIT, lambda _number, _frame: _print_state(loop, sys.stdout))
    # This handler runs at once, even while the interpreter is in C code; the Python handler above runs afterwards.
    faulthandler.register(signal.SIGQUIT, sys.stdout, all_threads=True, chain=True)


def end_within(patience_s: float, code: int) -> None:
    """Exit with `code` unless the process ends by itself within `patience_s`. A thread that waits for a peer, such as a
    DNS resolver, would keep it alive.
    """
    import threading

    timer = threading.Timer(patience_s, lambda: os._exit(code))
    timer.daemon = True
    with contextlib.suppress(RuntimeError):  # not enough memory for a thread
        timer.start()


def _end_at_once() -> None:
    # The signal may have interrupted a log call.
    with contextlib.suppress(RuntimeError):
        logger.error("A second signal: the process ends at once, without a clean stop")
    os._exit(1)


def _print_state(loop: asyncio.AbstractEventLoop, out: TextIO) -> None:
    """Print the names of the threads, whose stacks have been printed, the tasks of the loop, and how long the loop took
    to respond.
    """
    import threading

    asked_s = time.monotonic()
    lines = [f"{len(threading.enumerate())} threads:"]
    lines += [f'  Thread 0x{each.ident or 0:016x} "{each.name}"' for each in threading.enumerate()]
    tasks = sorted(asyncio.all_tasks(loop), key=lambda each: each.get_name())
    lines.append(f"{len(tasks)} tasks:")
    for task in tasks:
        lines.append(f'  Task "{task.get_name()}"')
        for frame in task.get_stack():
            code = frame.f_code
            lines.append(f'    File "{code.co_filename}", line {frame.f_lineno} in {code.co_qualname}')
    _write(out, lines)

    def answer() -> None:
        name, waited_ms = f"{type(loop).__module__}.{type(loop).__qualname__}", (time.monotonic() - asked_s) * 1000
        _write(out, [f"The event loop ({name}) runs: it answered after {waited_ms:.1f} ms"])

    with contextlib.suppress(RuntimeError):  # the loop has ended
        loop.call_soon_threadsafe(answer)


def _write(out: TextIO, lines: list[str]) -> None:
    # The signal may have interrupted a print.
    with contextlib.suppress(RuntimeError, OSError):
        print("\n".join(lines), file=out, flush=True)
