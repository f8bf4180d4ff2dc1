"""The broker's numbers as Prometheus text, under the names that Kafka's JMX exporter rules made common.

The owners count with plain integers; this module only reads them during a scrape. `metrics.listener` starts the HTTP
server, which runs on separate threads; nothing is imported before that. State of the event loop is read on the event
loop: a scrape waits for its turn there. `metric_definitions` holds the names.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError
from typing import TYPE_CHECKING

from broker.controller.controller_term import UncleanElections
from broker.groups.group_coordinator_service import GroupCoordinatorService
from broker.logs.log_cleaner import LogCleaner
from broker.network.client_quotas import ClientQuotas
from broker.network.registry import HandlerRegistry
from broker.network.socket_server import SocketServer
from broker.observability import metric_definitions as metric
from broker.replication.fetch_session import FetchSessionCache
from broker.replication.replica_alter_log_dirs import ReplicaAlterLogDirsManager
from broker.replication.replica_manager import ReplicaManager
from environment.contract import Clock
from environment.slices import in_slices
from storage.directory.log_directory import LogDirectory
from storage.recovery.scrub import Scrub

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric


def cleaner_metrics(cleaner: LogCleaner, log_dirs: Iterable[str]) -> Iterator[Metric]:
    """The current metrics of compaction; each read is one of a plain attribute."""
    numbers = cleaner.numbers
    yield metric.CLEAN_TIME.of(cleaner.max_clean_time_s)
    yield metric.RECOPY_PERCENT.of(cleaner.recopy_percent)
    yield metric.BUFFER_UTILIZATION.of(cleaner.max_buffer_utilization_percent)
    yield metric.COMPACTION_DELAY.of(numbers.max_compaction_delay_s)
    yield metric.DEAD_CLEANERS.of(cleaner.dead_threads)
    yield metric.DIRTY_PERCENT.of(numbers.max_dirty_percent)
    yield metric.SINCE_CLEANER_RUN.of(cleaner.time_since_last_run_ms)
    partitions, size = metric.UNCLEANABLE.family(), metric.UNCLEANABLE_BYTES.family()
    for directory in log_dirs:
        found = numbers.uncleanable.get(directory)
        partitions.add_metric([directory], 0 if found is None else found.partitions)
        size.add_metric([directory], 0 if found is None else found.bytes)
    yield from (partitions, size)


def quota_metrics(quotas: ClientQuotas) -> Iterator[Metric]:
    """The metrics of all quotas. If a quota is only for a user or only for a client id, the other label is empty."""
    now_ms = quotas.now_s() * 1000
    for usages, of_rate, of_time in (
        (quotas.produce, metric.PRODUCE_RATE, metric.PRODUCE_THROTTLE),
        (quotas.fetch, metric.FETCH_RATE, metric.FETCH_THROTTLE),
        (quotas.request, metric.REQUEST_RATE, metric.REQUEST_THROTTLE),
        (quotas.mutations, metric.MUTATION_RATE, metric.MUTATION_THROTTLE),
    ):
        rates, times = of_rate.family(), of_time.family()
        for sharers, usage in usages:
            rates.add_metric(sharers, usage.rate.measure(now_ms))
            times.add_metric(sharers, usage.mean_throttle_time_ms(now_ms))
        yield from (rates, times)
    tokens = metric.MUTATION_TOKENS.family()
    for sharers, usage in quotas.mutations:
        tokens.add_metric(sharers, usage.bucket.tokens(usage.limit, now_ms))
    yield tokens
    accepted = metric.ACCEPT_RATE.family()
    for (address, _), usage in quotas.connections:
        accepted.add_metric([address], usage.rate.measure(now_ms))
    yield accepted


logger = logging.getLogger("kafka.server.Metrics")

SCRAPE_TIMEOUT_S = 10.0
"""A scrape fails if the event loop does not answer in this time, Prometheus' default timeout."""


class BrokerCollector:
    """A prometheus-client collector over the owners of the numbers. Create it on the event loop."""

    def __init__(
        self,
        registry: HandlerRegistry,
        replica_manager: ReplicaManager,
        socket_server: SocketServer,
        fetch_sessions: FetchSessionCache,
        groups: GroupCoordinatorService,
        log_directories: Sequence[LogDirectory],
        scrub: Scrub,
        cleaner: LogCleaner,
        moves: ReplicaAlterLogDirsManager,
        unclean_elections: UncleanElections,
        quotas: ClientQuotas,
        clock: Clock,
    ) -> None:
        self._clock = clock
        self._quotas = quotas
        self._loop = asyncio.get_running_loop()
        self._scrub = scrub
        self._cleaner = cleaner
        self._moves = moves
        self._unclean_elections = unclean_elections
        self._log_directories = log_directories
        self._groups = groups
        self._registry = registry
        self._replica_manager = replica_manager
        self._socket_server = socket_server
        self._fetch_sessions = fetch_sessions

    def collect(self) -> Iterable[Metric]:
        """All current metrics, or none while the broker stops. Runs on a scraper's thread.

        Raises TimeoutError when the event loop is too busy to answer.
        """
        snapshot = asyncio.run_coroutine_threadsafe(self._snapshot(), self._loop)
        try:
            return snapshot.result(SCRAPE_TIMEOUT_S)
        except CancelledError:
            return []
        finally:
            snapshot.cancel()

    async def _snapshot(self) -> list[Metric]:
        paths = [directory.path for directory in self._log_directories]
        return [
            *self._requests(),
            *[family async for family in self._topics()],
            *self._broker(),
            *log_directory_metrics(self._log_directories),
            *self._corruption(),
            *cleaner_metrics(self._cleaner, paths),
            *self._moving(),
            *quota_metrics(self._quotas),
            metric.UNCLEAN_ELECTIONS.of(self._unclean_elections.count),
        ]

    def _moving(self) -> Iterator[Metric]:
        yield metric.MOVE_LAG.of(self._moves.max_lag)
        yield metric.FAILED_MOVES.of(self._moves.failed_partitions)
        yield metric.MOVED_BYTES.of(self._moves.copied_bytes)

    def _corruption(self) -> Iterator[Metric]:
        corruptions = metric.CORRUPTIONS.family()
        for directory in self._log_directories:
            corruptions.add_metric([directory.path], len(directory.corruptions))
        yield corruptions
        yield metric.SCRUBBED.of(self._scrub.checked_bytes)
        yield metric.SCRUB_PASS_ENDED.of((self._scrub.last_pass_ended_ms or 0) / 1000)

    def _requests(self) -> Iterator[Metric]:
        requests, failures = metric.REQUESTS.family(), metric.REQUEST_FAILURES.family()
        times = metric.REQUEST_TIME.family()
        for route in self._registry:
            requests.add_metric([route.name], route.statistics.requests)
            failures.add_metric([route.name], route.statistics.failures)
            times.add_metric([route.name], route.statistics.total_time_s)
        yield from (requests, failures, times)

    async def _topics(self) -> AsyncIterator[Metric]:
        totals: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
        size, start, end = metric.LOG_SIZE.family(), metric.LOG_START_OFFSET.family(), metric.LOG_END_OFFSET.family()
        async for partition in in_slices(list(self._replica_manager), self._clock):
            topic, index = partition.topic_partition
            labels = [topic, str(index)]
            size.add_metric(labels, partition.log.size_bytes)
            start.add_metric(labels, partition.log.log_start_offset)
            end.add_metric(labels, partition.log.log_end_offset)
            total = totals[topic]
            total[0] += partition.messages_in
            total[1] += partition.bytes_in
            total[2] += partition.bytes_out
        for gauge in (size, start, end):
            yield gauge
        for position, definition in enumerate((metric.MESSAGES_IN, metric.BYTES_IN, metric.BYTES_OUT)):
            counter = definition.family()
            for topic, total in totals.items():
                counter.add_metric([topic], total[position])
            yield counter

    def _broker(self) -> Iterator[Metric]:
        yield from self._replicas()
        connections = metric.CONNECTIONS.family()
        for listener in self._socket_server.ports:
            open_now = sum(connection.listener_name == listener for connection in self._socket_server.connections)
            connections.add_metric([listener], open_now)
        yield connections
        flushes = self._replica_manager.group_commit.statistics
        yield metric.FLUSH_ROUNDS.of(flushes.rounds)
        yield metric.FLUSHED_LOGS.of(flushes.logs)
        yield metric.FLUSH_TIME.of(flushes.total_time_s)
        purgatory = metric.PURGATORY_SIZE.family()
        replicas = self._replica_manager
        for name, size in (
            (replicas.delayed_fetches.name, replicas.delayed_fetches.size + replicas.follower_fetches.size),
            (replicas.delayed_produces.name, replicas.delayed_produces.size),
            (replicas.delayed_deletions.name, replicas.delayed_deletions.size),
        ):
            purgatory.add_metric([name], size)
        yield purgatory
        group_counts = self._groups.group_counts()
        yield metric.GROUPS.of(sum(group_counts.values()))
        yield metric.OFFSETS.of(self._groups.offset_count())
        states = metric.GROUPS_BY_STATE.family()
        for state, count in group_counts.items():
            states.add_metric([state.value], count)
        yield states

    def _replicas(self) -> Iterator[Metric]:
        partitions = list(self._replica_manager)
        under_replicated = sum(
            partition.is_leader and len(partition.image.isr) < len(partition.image.replicas) for partition in partitions
        )
        yield metric.PARTITION_COUNT.of(len(partitions))
        yield metric.LEADER_COUNT.of(sum(partition.is_leader for partition in partitions))
        yield metric.UNDER_REPLICATED.of(under_replicated)
        yield metric.FETCH_SESSIONS.of(len(self._fetch_sessions))
        yield metric.FETCH_SESSION_PARTITIONS.of(self._fetch_sessions.partition_count)


def log_directory_metrics(directories: Sequence[LogDirectory]) -> Iterator[Metric]:
    """Whether each log directory works, and the free space on its disk."""
    is_offline = {directory.path: directory.failure is not None for directory in directories}
    yield metric.OFFLINE_DIRECTORIES.of(sum(is_offline.values()))
    offline, usable = metric.DIRECTORY_OFFLINE.family(), metric.DIRECTORY_USABLE.family()
    reached = metric.RESERVE_REACHED.family()
    for directory in directories:
        labels = [directory.path]
        offline.add_metric(labels, is_offline[directory.path])
        usable.add_metric(labels, directory.usable_bytes)
        reached.add_metric(labels, directory.is_reserve_reached)
    yield from (offline, usable, reached)


class MetricsServer:
    """The HTTP endpoint of `metrics.listener`. Until `show` is called, it serves only the metrics of the process."""

    def __init__(self, address: str) -> None:
        """Open the endpoint at http://host:port/metrics; an empty host means every interface.

        Raises OSError naming the address when it is not available.
        """
        from prometheus_client import GCCollector, PlatformCollector, ProcessCollector
        from prometheus_client.registry import CollectorRegistry

        from broker.observability.scrape_server import ScrapeServer

        host, _, port = address.rpartition(":")
        self._registry = registry = CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        GCCollector(registry=registry)
        try:
            self._server = ScrapeServer(host.strip("[]") or "0.0.0.0", int(port), registry)  # noqa: S104
        except OSError as error:
            text = f"metrics.listener failed to bind to {address}: {error.strerror or error}"
            raise OSError(error.errno, text) from error
        self._host = host
        self._server.start()
        self.port: int = self._server.server_port

    def show(self, collector: BrokerCollector) -> None:
        """Serve the broker's metrics as well."""
        self._registry.register(collector)
        logger.info("Metrics are served at http://%s:%d/metrics", self._host, self.port)

    def close(self) -> None:
        """Stop serving."""
        self._server.stop()
