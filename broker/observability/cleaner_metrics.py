"""The cleaner's numbers, under the names that Kafka's JMX exporter rules made common (`kafka.log:type=LogCleaner`,
`kafka.log:type=LogCleanerManager`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from broker.logs.log_cleaner import LogCleaner
from broker.observability import metric_definitions as metric

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric


def cleaner_metrics(cleaner: LogCleaner, log_dirs: Iterable[str]) -> Iterator[Metric]:
    """All metrics of compaction at this moment; every read is one of a plain attribute."""
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
