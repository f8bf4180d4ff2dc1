"""The quotas of this broker's clients (Kafka classes `QuotaFactory` and `RequestHandlerHelper`).

A client over its quota gets its reply at once, with the throttle time, and its connection is muted for that time
(KIP-219). Requests between brokers that only the cluster needs are exempt.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, Generic, TypeGuard, TypeVar

from broker.network.registry import Reply, RequestContext
from cluster.metadata_image import MetadataImage
from cluster.quotas.alterations import limit_of
from cluster.quotas.client_quota import MOST_REMEMBERED_CLIENTS, ClientQuota, MutationQuota, QuotaWindow, Usage
from cluster.quotas.entities import NOBODY, Name, QuotaEntity, QuotaLimits
from config.broker_keys import (
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
)
from environment.contract import Clock, Network
from protocol.api_keys import ApiKey
from protocol.errors import ApiError, ErrorCode

logger = logging.getLogger("kafka.server.IpConfigHandler")

T = TypeVar("T")

TIME_IS_FREE: Final = frozenset(
    {
        ApiKey.LEADER_AND_ISR,
        ApiKey.STOP_REPLICA,
        ApiKey.UPDATE_METADATA,
        ApiKey.CONTROLLED_SHUTDOWN,
        ApiKey.WRITE_TXN_MARKERS,
        ApiKey.ALTER_PARTITION,
        ApiKey.ALLOCATE_PRODUCER_IDS,
        ApiKey.FETCH,
    }
)
"""APIs whose time the dispatcher does not count: those of the cluster, and Fetch, whose handler counts it for
consumers.
"""
PERCENT: Final = 100.0
LOOKUP_PERIOD_MS: Final = 60_000
"""Interval for resolving the addresses of hosts with a quota again. Kafka resolves them once."""
DEFAULT_WINDOW: Final = QuotaWindow(11, 1000)


class UsageByContext(dict[RequestContext, Usage | None]):
    """The usage record for each request context, cached until the limits change."""

    def __init__(self, quota: ClientQuota, now_s: Callable[[], float]) -> None:
        super().__init__()
        self._quota = quota
        self._now_s = now_s
        quota.remembered.append(self)

    def __missing__(self, context: RequestContext) -> Usage | None:
        if len(self) >= MOST_REMEMBERED_CLIENTS:
            self.clear()
        usage = self[context] = self._quota.of(*clients_of(context), self._now_s() * 1000)
        return usage


class ClientQuotas:
    """The quotas of all kinds. `is_limited` is False while no quota exists; then nothing is counted."""

    def __init__(
        self,
        clock: Clock,
        image: MetadataImage | None = None,
        network: Network | None = None,
        window: QuotaWindow = DEFAULT_WINDOW,
        mutation_window: QuotaWindow = DEFAULT_WINDOW,
    ) -> None:
        """`network` resolves hosts whose connections have a quota. Required if an image may contain such quotas."""
        self.now_s = clock.monotonic_s
        self._network = network
        self.produce = ClientQuota(window)
        self.fetch = ClientQuota(window)
        self.request = ClientQuota(window, longest_ms=window.window_ms)
        self.mutations = MutationQuota(mutation_window)
        self.connections = ClientQuota(window, longest_ms=window.window_ms)
        """Keyed by the address of the peer instead of the user."""
        self._produced = UsageByContext(self.produce, self.now_s)
        self._fetched = UsageByContext(self.fetch, self.now_s)
        self._requested = UsageByContext(self.request, self.now_s)
        self._addresses: dict[Name, str] = {}
        """The known addresses of hosts whose quota is set by name."""
        self._lookups: dict[asyncio.Task[None], None] = {}
        self._limited_addresses: Mapping[Name, Mapping[str, str]] = {}
        self.is_limited = False
        if image is not None:
            self._apply(image)

    def image_changed(self, old: MetadataImage, new: MetadataImage) -> None:
        """Apply the configurations of a new metadata image."""
        if new.configs is not old.configs:
            self._apply(new)

    def _apply(self, image: MetadataImage) -> None:
        clients: dict[tuple[Name, Name], Mapping[str, str]] = {}
        addresses: dict[Name, Mapping[str, str]] = {}
        for resource, config in image.configs.items():
            entity = QuotaEntity.of(resource) if resource[0] < 0 else None
            if entity is not None and entity.ip is not None:
                addresses[entity.ip] = config
            elif entity is not None:
                clients[entity.user, entity.client_id] = config
        self._limited_addresses = addresses
        self._addresses = {host: address for host, address in self._addresses.items() if host in addresses}
        self._limit_connections()
        if any(is_host_name(each) and each not in self._addresses for each in addresses):
            lookup = asyncio.get_running_loop().create_task(self.look_up_hosts(), name="quota-hosts")
            self._lookups[lookup] = None
            lookup.add_done_callback(self._lookups.pop)
        self.is_limited = False
        for key, quota in (
            (PRODUCER_BYTE_RATE, self.produce),
            (CONSUMER_BYTE_RATE, self.fetch),
            (REQUEST_PERCENTAGE, self.request),
            (CONTROLLER_MUTATION_RATE, self.mutations),
        ):
            limits = _limits(clients, key)
            quota.set_limits(limits)
            self.is_limited = self.is_limited or bool(limits)

    # -- all requests --------------------------------------------------------------------------------------------------

    def charge(
        self, api_key: ApiKey, context: RequestContext, reply: Reply, size: int, time_s: float
    ) -> tuple[Reply, int]:
        """Charge a request of `size` bytes that took `time_s`. Returns the reply, with the throttle time in it, and
        that time in milliseconds. The handler may already have set a throttle time.
        """
        now_ms = self.now_s() * 1000
        reported_ms: int = getattr(reply, "throttle_time_ms", 0)
        throttle_ms, exceeded = reported_ms, None
        if api_key is ApiKey.PRODUCE and (usage := self._produced[context]) is not None:
            produce_ms = self.produce.charge(usage, size, now_ms)
            if produce_ms > throttle_ms:
                throttle_ms, exceeded = produce_ms, usage
        if reply is not None and api_key not in TIME_IS_FREE and (usage := self._requested[context]) is not None:
            request_ms = self.request.charge(usage, time_s * PERCENT, now_ms)
            if request_ms > throttle_ms:
                throttle_ms, exceeded = request_ms, usage
        if exceeded is not None:
            exceeded.throttled(throttle_ms, now_ms)
            if reply is not None and "throttle_time_ms" in reply.declared_fields:
                # A handler may return the same reply object for several clients.
                reply = reply.replace(throttle_time_ms=throttle_ms)
        return reply, throttle_ms

    def count_time(self, context: RequestContext, time_s: float) -> None:
        """Count time spent for a client after its reply was decided; it affects the next reply."""
        usage = self._requested[context]
        if usage is not None:
            usage.rate.record(time_s * PERCENT, self.now_s() * 1000)

    # -- fetches -------------------------------------------------------------------------------------------------------

    def max_fetch_bytes(self, context: RequestContext) -> float:
        """The most bytes that a fetch may return within the quota; infinite without a quota."""
        return self.fetch.most_at_once(*clients_of(context), self.now_s() * 1000)

    def charge_fetch(self, context: RequestContext, size: Callable[[], int], time_s: float) -> int:
        """Charge a consumer's fetch that took `time_s`. Returns the throttle time in milliseconds. If that is not 0,
        the client gets no records now, and no bytes are counted.
        """
        fetch, request = self._fetched[context], self._requested[context]
        now_ms = self.now_s() * 1000
        request_ms = 0 if request is None else self.request.charge(request, time_s * PERCENT, now_ms)
        fetch_ms = answer_bytes = 0
        if fetch is not None:
            answer_bytes = size()
            fetch_ms = self.fetch.charge(fetch, answer_bytes, now_ms)
        throttle_ms = max(fetch_ms, request_ms)
        if throttle_ms:
            if fetch is not None:
                fetch.rate.record(-answer_bytes, now_ms)
            exceeded = fetch if fetch_ms > request_ms else request
            if exceeded is not None:
                exceeded.throttled(throttle_ms, now_ms)
        return throttle_ms

    # -- connections ---------------------------------------------------------------------------------------------------

    def _limit_connections(self) -> None:
        configured: dict[tuple[Name, Name], Mapping[str, str]] = {}
        for host, config in self._limited_addresses.items():
            address = self._addresses.get(host) if is_host_name(host) else host
            if address is not None:
                configured[address, None] = config
        self.connections.set_limits(_limits(configured, CONNECTION_CREATION_RATE))

    async def look_up_hosts(self) -> None:
        """Resolve the hosts that have a quota again; call it regularly. A host that cannot be resolved keeps its
        address.
        """
        assert self._network is not None
        before = dict(self._addresses)
        for host in [each for each in self._limited_addresses if is_host_name(each)]:
            try:
                self._addresses[host] = (await self._network.addresses_of(host))[0]  # Kafka also prefers IPv4
            except OSError as error:
                logger.error("Cannot look up %s, whose connections have a quota: %s", host, error)
        if self._addresses != before:
            self._limit_connections()

    def charge_connection(self, address: str) -> int:
        """Count a connection from `address`. Returns after how many milliseconds to close it unserved because the rate
        is exceeded, or 0 to serve it. A connection that is to be closed is not counted (KIP-612).
        """
        now_ms = self.now_s() * 1000
        throttle_ms = self.connections.record(address, NOBODY, 1, now_ms)
        if throttle_ms:
            self.connections.take_back(address, NOBODY, 1, now_ms)
            self.connections.throttled(address, NOBODY, throttle_ms, now_ms)
        return throttle_ms

    # -- topic mutations -----------------------------------------------------------------------------------------------

    def permits(self, context: RequestContext, strict_since: int) -> MutationPermits:
        """The mutation permits of a request; its API's quota is strict from version `strict_since` on (KIP-599)."""
        return MutationPermits(self, context, is_strict=context.api_version >= strict_since)


def is_host_name(address: Name) -> TypeGuard[str]:
    """Whether the quota belongs to a host by name, not to an IP address or to the default."""
    return isinstance(address, str) and not address.replace(".", "").isdecimal()


def _limits(configured: Mapping[tuple[Name, Name], Mapping[str, str]], key: str) -> QuotaLimits:
    found = {whose: limit_of(config, key) for whose, config in configured.items()}
    for whose, limit in found.items():
        if limit is None and key in configured[whose]:
            logger.error("Ignoring quota %s of %s: %s is not a number", key, whose, configured[whose][key])
    return QuotaLimits({whose: limit for whose, limit in found.items() if limit is not None})


class MutationPermits:
    """The mutations of one request (Kafka's `ControllerMutationQuota`), and the time that they take."""

    def __init__(self, quotas: ClientQuotas, context: RequestContext, *, is_strict: bool) -> None:
        self._quotas = quotas
        self._context = context
        self._is_strict = is_strict
        self._ends_s = 0.0

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Charge the time of a block without awaits to the client. The block runs outside the client's request, so the
        dispatcher does not count it.
        """
        began_s = self._quotas.now_s()
        try:
            yield
        finally:
            if self._quotas.is_limited:
                self._quotas.count_time(self._context, self._quotas.now_s() - began_s)

    def take(self, partitions: int) -> None:
        """Request permission to create or delete this many partitions. Raises ApiError THROTTLING_QUOTA_EXCEEDED."""
        now_s = self._quotas.now_s()
        throttle_ms = self._quotas.mutations.record(
            *clients_of(self._context), partitions, now_s * 1000, is_strict=self._is_strict
        )
        if throttle_ms:
            self._ends_s = now_s + throttle_ms / 1000
            if self._is_strict:
                raise ApiError(ErrorCode.THROTTLING_QUOTA_EXCEEDED)

    def throttle_time_ms(self) -> int:
        """The client's remaining throttle time, after all mutations."""
        now_s = self._quotas.now_s()
        throttle_ms = round((self._ends_s - now_s) * 1000)
        if throttle_ms <= 0:
            return 0
        self._quotas.mutations.throttled(*clients_of(self._context), throttle_ms, now_s * 1000)
        return throttle_ms


def clients_of(context: RequestContext) -> tuple[str, str]:
    """User and client id, in the form that quotas use."""
    return context.principal.name, context.client_id or ""


class Stopwatch:
    """Measures how long one request holds the event loop, until `stop`."""

    __slots__ = ("_began_s", "_now_s", "_runs")

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._began_s = now_s()
        self._runs = True

    def lap(self) -> float:
        """Seconds since the last call; 0 after `stop`."""
        began_s, self._began_s = self._began_s, self._now_s()
        return self._began_s - began_s if self._runs else 0.0

    def stop(self) -> float:
        """Seconds since the last lap; stops the watch."""
        time_s = self.lap()
        self._runs = False
        return time_s


class Timed(Awaitable[T], Generic[T]):
    """Awaits `work`, and measures how long it held the event loop."""

    __slots__ = ("_now_s", "_work", "time_s")

    def __init__(self, work: Awaitable[T], now_s: Callable[[], float]) -> None:
        self._work = work
        self._now_s = now_s
        self.time_s = 0.0

    def __await__(self) -> Generator[Any, Any, T]:
        steps = self._work.__await__()
        step: Callable[[Any], Any] = steps.send
        given: Any = None
        while True:
            began_s = self._now_s()
            try:
                waits_for: asyncio.Future[Any] | None = step(given)
            except StopIteration as end:
                result: T = end.value
                return result
            finally:
                self.time_s += self._now_s() - began_s
            try:
                step, given = steps.send, (yield waits_for)
            except BaseException as error:  # noqa: BLE001  raised inside the work instead
                step, given = steps.throw, error
