"""The cleaner's numbers, under the names that Kafka's JMX exporter rules made common (`kafka.log:type=LogCleaner`,
`kafka.log:type=LogCleanerManager`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from broker.logs.log_cleaner import LogCleaner

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric


def cleaner_metrics(cleaner: LogCleaner, log_dirs: Iterable[str]) -> Iterator[Metric]:
    """All metrics of compaction at this moment; every read is one of a plain attribute."""
    from prometheus_client.core import GaugeMetricFamily

    numbers = cleaner.numbers
    for name, text, value in (
        ("logcleaner_max_clean_time_secs", "Of the last cleanings of all threads.", cleaner.max_clean_time_s),
        ("logcleaner_cleaner_recopy_percent", "What the last cleanings kept.", cleaner.recopy_percent),
        (
            "logcleaner_max_buffer_utilization_percent",
            "How full the map of keys was in the last cleanings.",
            cleaner.max_buffer_utilization_percent,
        ),
        (
            "logcleaner_max_compaction_delay_secs",
            "How long the log that waits longest is overdue by max.compaction.lag.ms.",
            numbers.max_compaction_delay_s,
        ),
        ("logcleaner_deadthreadcount", "Threads whose worker died, until they clean again.", cleaner.dead_threads),
        ("logcleanermanager_max_dirty_percent", "Of the dirtiest log.", numbers.max_dirty_percent),
        (
            "logcleanermanager_time_since_last_run_ms",
            "Milliseconds since logs were last looked at.",
            cleaner.time_since_last_run_ms,
        ),
    ):
        yield GaugeMetricFamily(f"kafka_log_{name}", text, value=value)
    partitions = GaugeMetricFamily(
        "kafka_log_logcleanermanager_uncleanable_partitions_count", "Set aside.", labels=["logDirectory"]
    )
    size = GaugeMetricFamily(
        "kafka_log_logcleanermanager_uncleanable_bytes", "Dirty bytes of those.", labels=["logDirectory"]
    )
    for directory in log_dirs:
        found = numbers.uncleanable.get(directory)
        partitions.add_metric([directory], 0 if found is None else found.partitions)
        size.add_metric([directory], 0 if found is None else found.bytes)
    yield from (partitions, size)
