"""The real adapters: the only module that asks the operating system for time, randomness, threads and sockets."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from environment.contract import Clock
from protocol.uuids import Uuid

logger = logging.getLogger(__name__)

T = TypeVar("T")
P = TypeVar("P", bound=asyncio.BaseProtocol)

MAX_OPEN_FILES = 100_000
"""Most open files that the broker asks for, as Kafka's documentation recommends for large brokers."""

ENOUGH_FILES = 1024
"""Descriptors that suffice for the logs of a large broker, which reopens files as needed."""
SPARE_FILES = 128
"""Descriptors for short-lived uses: checkpoints, directories, and connections to be refused."""
_ACCEPTED_AT_ONCE = 4
"""Connections that asyncio's loop accepts in one turn."""


def variables() -> Mapping[str, str]:
    """The environment variables of this process."""
    return os.environ


def kafka_options() -> str:
    """The text of KAFKA_OPTS, which Kafka's scripts hand to Java."""
    return os.environ.get("KAFKA_OPTS", "")


def read_text(path: str) -> str:
    """The text of a file in UTF-8. Raises OSError, UnicodeError."""
    with open(path, encoding="utf-8") as file:
        return file.read()


def run_loop(main_coroutine: Callable[[], Coroutine[Any, Any, int]]) -> int:
    """Run on uvloop where it exists, on asyncio elsewhere or with ODRADEK_LOOP=asyncio."""
    if os.environ.get("ODRADEK_LOOP") != "asyncio":
        try:
            import uvloop
        except ImportError:
            logger.info("uvloop is not installed; running on asyncio's own loop")
        else:
            return uvloop.run(main_coroutine())
    return asyncio.run(main_coroutine())


def raise_open_file_limit() -> None:
    """Raise the limit on open files to the hard limit: logs and connections share it.

    Kafka leaves that to the operator; the 256 or 1,024 of a laptop would be used up by a few hundred clients.
    """
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_OPEN_FILES)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (ValueError, OSError):
        # macOS has another, lower limit (kern.maxfilesperproc), which getrlimit does not report.
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, 10_240), hard))


def with_open_file_limit(error: Exception) -> str:
    """The error's message; if it or its cause is a lack of file descriptors, also the limit."""
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    cause = error if error.__cause__ is None else error.__cause__
    is_limit = isinstance(cause, OSError) and cause.errno == errno.EMFILE
    return f"{error} (this process may have {soft} files open: ulimit -n)" if is_limit else str(error)


def room_for_connections(files_of_logs: int) -> int | None:
    """How many connections leave enough descriptors for the logs (which would use `files_of_logs`, but manage with
    ENOUGH_FILES) and for other uses. Returns None if the system does not limit open files.

    A log that gets no descriptor can neither roll nor flush, which looks like a failed disk.
    """
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return None
    return max(soft - min(files_of_logs, ENOUGH_FILES) - min(SPARE_FILES, soft // 4), 1)


def available_memory() -> int | None:
    """Bytes of memory that this process may use: the machine's memory, or a lower limit of the process (ulimit -d, -v),
    its cgroup (v2, v1) or an ancestor of that cgroup.
    """
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")] if "SC_PHYS_PAGES" in os.sysconf_names else []
    for path in _memory_limits_of_cgroups():
        with contextlib.suppress(OSError, ValueError):  # "max" means unlimited
            limits.append(int(read_text(path)))
    return min([*limits, *_memory_limits_of_process()], default=None)


def _memory_limits_of_process() -> Iterator[int]:
    import resource

    for limit in (resource.RLIMIT_AS, resource.RLIMIT_DATA):
        soft, _ = resource.getrlimit(limit)
        if soft != resource.RLIM_INFINITY:
            yield soft


def _memory_limits_of_cgroups(root: str = "/sys/fs/cgroup", membership: str = "/proc/self/cgroup") -> Iterator[str]:
    """The files that may hold a limit. In a container the own cgroup appears as the root; for a systemd service it does
    not.
    """
    groups = {""}
    with contextlib.suppress(OSError, UnicodeError):
        for line in read_text(membership).splitlines():
            _, controllers, group = line.split(":", 2)
            if controllers in ("", "memory"):
                parts = group.strip("/").split("/")
                groups.update("/".join(parts[: end + 1]) for end in range(len(parts)))
    for group in sorted(groups):
        yield os.path.join(root, group, "memory.max")
        yield os.path.join(root, "memory", group, "memory.limit_in_bytes")


class ProcessMemory:
    """The memory of this process, on Linux with glibc."""

    def __init__(self, trim: Callable[[int], int]) -> None:
        self._trim = trim

    @staticmethod
    def current() -> ProcessMemory | None:
        """The memory of this process, or None if the C library cannot return memory."""
        import ctypes

        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        return None if trim is None else ProcessMemory(trim)

    def processor_s(self) -> float:
        """Processor seconds that the process has used."""
        return time.process_time()

    def trim(self) -> None:
        """Return all unused pages of the heap to the system. Takes some 0.1 ms per MiB."""
        self._trim(0)


class SystemClock(Clock):
    """The machine's clocks."""

    monotonic_s = staticmethod(time.monotonic)

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000


class SystemRandom:
    """The operating system's randomness."""

    def randrange(self, stop: int) -> int:
        return self._bits_128() % stop  # The bias is below 2**-96 for a `stop` of at most 2**32.

    def uuid(self) -> Uuid:
        # Kafka's Uuid.randomUuid skips ids whose text begins with '-', which command lines would parse as an option.
        while True:
            candidate = Uuid.version_4(self._bits_128())
            if not str(candidate).startswith("-"):
                return candidate

    def _bits_128(self) -> int:
        # Not `random.SystemRandom`: importing `random` takes 80 kB.
        return int.from_bytes(os.urandom(16))


class _Threads(ThreadPoolExecutor):
    """A thread pool that keeps working with its existing threads when the system refuses a new one."""

    def _adjust_thread_count(self) -> None:
        try:
            super()._adjust_thread_count()
        except RuntimeError:
            # The submitted call is in the queue already.
            if not self._threads:
                raise


class ThreadExecutor:
    """Threads that are created on demand, so an idle broker has one."""

    def __init__(self, max_workers: int) -> None:
        self._pool = _Threads(max_workers, thread_name_prefix="odradek-io")

    def run(self, function: Callable[..., T], /, *args: object) -> Awaitable[T]:
        return asyncio.get_running_loop().run_in_executor(self._pool, function, *args)

    def close(self) -> None:
        # Callers have already awaited all work that must finish. A remaining thread waits for a peer that does not
        # answer.
        self._pool.shutdown(wait=False)


class _TcpListener:
    def __init__(self, bound: socket.socket, backlog: int) -> None:
        self._socket = bound
        self._backlog = backlog
        self._server: asyncio.Server | None = None

    @property
    def port(self) -> int:
        return int(self._socket.getsockname()[1])

    def listen(self) -> None:
        self._socket.listen(self._backlog)

    async def start(self, protocol_factory: Callable[[], asyncio.BaseProtocol]) -> None:
        loop = asyncio.get_running_loop()
        # asyncio accepts up to `backlog` connections in one turn, and closes a refused one some turns later. A burst
        # would hold all descriptors for that long and leave the logs none.
        at_once = min(self._backlog, _ACCEPTED_AT_ONCE)
        self._server = await loop.create_server(protocol_factory, sock=self._socket, backlog=at_once)
        self._socket.listen(self._backlog)

    async def close(self) -> None:
        if self._server is None:
            self._socket.close()
            return
        # When its server closes, asyncio forgets connections that it has accepted but not started; no one would close
        # them.
        asyncio.get_running_loop().remove_reader(self._socket)
        await asyncio.sleep(0)
        self._server.close()


class TcpNetwork:
    """TCP through the running event loop. `backlog` is Kafka's socket.listen.backlog.size."""

    def __init__(self, backlog: int) -> None:
        self._backlog = backlog

    def bind(self, host: str | None, port: int) -> _TcpListener:
        if host is None and socket.has_dualstack_ipv6():
            return _TcpListener(self._bound(socket.AF_INET6, ("::", port), dual_stack=True), self._backlog)
        family, address = socket.AF_INET, ("0.0.0.0", port)  # noqa: S104 - an empty host in `listeners` asks for it
        if host is not None:
            # getaddrinfo would import the IDNA codec for any text; bytes avoid that.
            name = host.encode() if host.isascii() else host
            found = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            family, address = found[0][0], found[0][4]  # type: ignore[assignment]
        return _TcpListener(self._bound(family, address), self._backlog)

    async def connect(self, protocol_factory: Callable[[], P], host: str, port: int) -> tuple[asyncio.BaseTransport, P]:
        return await asyncio.get_running_loop().create_connection(protocol_factory, host, port)

    async def addresses_of(self, host: str) -> list[str]:
        try:
            found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
        except UnicodeError as error:
            raise OSError(f"{host!r} is not a host name: {error}") from error
        return sorted((str(each[4][0]) for each in found), key=lambda address: ":" in address)

    def host_name(self) -> str:
        return socket.getfqdn()

    @staticmethod
    def _bound(family: socket.AddressFamily, address: tuple[str, int], *, dual_stack: bool = False) -> socket.socket:
        bound = socket.socket(family, socket.SOCK_STREAM)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if dual_stack:
                bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            bound.setblocking(False)
            bound.bind(address)
        except BaseException:
            bound.close()
            raise
        return bound
