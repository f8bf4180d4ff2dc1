"""Every metric of the broker: name, type, labels, unit and meaning. docs/operations.md lists them from here.

Names follow the common rules of the JMX exporter for Kafka, except `odradek_*`, which Kafka does not have.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily


class MetricType(StrEnum):
    """The Prometheus types that the broker uses."""

    COUNTER = "counter"
    GAUGE = "gauge"


class MetricDefinition(NamedTuple):
    """One metric family. `unit` is empty for a count; `meaning` names the counted thing."""

    name: str
    type: MetricType
    meaning: str
    unit: str = ""
    labels: tuple[str, ...] = ()

    @property
    def sample_name(self) -> str:
        """The name of its samples; Prometheus appends `_total` for a counter."""
        return f"{self.name}_total" if self.type is MetricType.COUNTER else self.name

    def family(self) -> CounterMetricFamily | GaugeMetricFamily:
        """An empty family, to be filled with samples."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        kind = CounterMetricFamily if self.type is MetricType.COUNTER else GaugeMetricFamily
        return kind(self.name, self.meaning, labels=self.labels)

    def of(self, value: float) -> CounterMetricFamily | GaugeMetricFamily:
        """The family of a metric without labels, with its one sample."""
        family = self.family()
        family.add_metric((), value)
        return family


DEFINITIONS: list[MetricDefinition] = []
"""All metrics, in the order of the documentation."""


def _counter(name: str, meaning: str, unit: str = "", labels: tuple[str, ...] = ()) -> MetricDefinition:
    DEFINITIONS.append(MetricDefinition(name, MetricType.COUNTER, meaning, unit, labels))
    return DEFINITIONS[-1]


def _gauge(name: str, meaning: str, unit: str = "", labels: tuple[str, ...] = ()) -> MetricDefinition:
    DEFINITIONS.append(MetricDefinition(name, MetricType.GAUGE, meaning, unit, labels))
    return DEFINITIONS[-1]


_REQUEST = ("request",)
REQUESTS = _counter("kafka_network_requestmetrics_requests", "Requests received, by API.", "", _REQUEST)
REQUEST_FAILURES = _counter(
    "kafka_network_requestmetrics_failures", "Requests that ended their connection, by API.", "", _REQUEST
)
REQUEST_TIME = _counter(
    "kafka_network_requestmetrics_totaltime_seconds",
    "Time from taking up a request to its reply, waiting included, by API.",
    "seconds",
    _REQUEST,
)
_CLIENT = ("user", "client_id")
PRODUCE_RATE = _gauge(
    "kafka_server_produce_byte_rate",
    "Bytes of produce requests per second, by quota: the user or client id that has it, or both.",
    "bytes",
    _CLIENT,
)
PRODUCE_THROTTLE = _gauge(
    "kafka_server_produce_throttle_time", "Mean time for which such producers were muted.", "milliseconds", _CLIENT
)
FETCH_RATE = _gauge("kafka_server_fetch_byte_rate", "Bytes of fetch responses per second, by quota.", "bytes", _CLIENT)
FETCH_THROTTLE = _gauge(
    "kafka_server_fetch_throttle_time", "Mean time for which such consumers were muted.", "milliseconds", _CLIENT
)
REQUEST_RATE = _gauge(
    "kafka_server_request_request_time", "Time of the event loop for requests, by quota.", "percent", _CLIENT
)
REQUEST_THROTTLE = _gauge(
    "kafka_server_request_throttle_time", "Mean time for which such clients were muted.", "milliseconds", _CLIENT
)
MUTATION_RATE = _gauge(
    "kafka_server_controllermutation_mutation_rate",
    "Partitions created and deleted per second, by quota.",
    "",
    _CLIENT,
)
MUTATION_TOKENS = _gauge(
    "kafka_server_controllermutation_tokens",
    "Partitions that may be created or deleted now, by quota.",
    "",
    _CLIENT,
)
MUTATION_THROTTLE = _gauge(
    "kafka_server_controllermutation_throttle_time",
    "Mean throttle time of such clients.",
    "milliseconds",
    _CLIENT,
)
ACCEPT_RATE = _gauge(
    "kafka_server_socket_server_metrics_connection_accept_rate",
    "Connections accepted per second, by address that has a quota.",
    "",
    ("ip",),
)
CONNECTIONS = _gauge(
    "kafka_server_socket_server_metrics_connection_count", "Open connections, by listener.", "", ("listener",)
)

_TOPIC = ("topic",)
MESSAGES_IN = _counter("kafka_server_brokertopicmetrics_messagesin", "Records appended, by topic.", "", _TOPIC)
BYTES_IN = _counter("kafka_server_brokertopicmetrics_bytesin", "Bytes of batches appended, by topic.", "bytes", _TOPIC)
BYTES_OUT = _counter("kafka_server_brokertopicmetrics_bytesout", "Bytes of batches fetched, by topic.", "bytes", _TOPIC)

_PARTITION = ("topic", "partition")
LOG_SIZE = _gauge("kafka_log_log_size", "Size of the log of a partition.", "bytes", _PARTITION)
LOG_START_OFFSET = _gauge("kafka_log_log_logstartoffset", "First offset of a partition.", "offset", _PARTITION)
LOG_END_OFFSET = _gauge("kafka_log_log_logendoffset", "Offset of the next record of a partition.", "offset", _PARTITION)

PARTITION_COUNT = _gauge("kafka_server_replicamanager_partitioncount", "Replicas on this broker.")
LEADER_COUNT = _gauge("kafka_server_replicamanager_leadercount", "Partitions that this broker leads.")
UNDER_REPLICATED = _gauge(
    "kafka_server_replicamanager_underreplicatedpartitions",
    "Partitions that this broker leads with fewer replicas in sync than assigned.",
)
PURGATORY_SIZE = _gauge(
    "kafka_server_delayedoperationpurgatory_purgatorysize",
    "Requests that wait for data (Fetch) or for replicas (Produce).",
    "",
    ("delayedOperation",),
)
FETCH_SESSIONS = _gauge(
    "kafka_server_fetchsessioncache_numincrementalfetchsessions", "Incremental fetch sessions (KIP-227)."
)
FETCH_SESSION_PARTITIONS = _gauge(
    "kafka_server_fetchsessioncache_numincrementalfetchpartitionscached", "Partitions in all fetch sessions."
)

FLUSH_ROUNDS = _counter("kafka_log_logflushstats_rounds", "Rounds of fsyncs; one round flushes many logs.")
FLUSHED_LOGS = _counter("kafka_log_logflushstats_logs", "Logs flushed in those rounds.")
FLUSH_TIME = _counter("kafka_log_logflushstats_time_seconds", "Time that those rounds took.", "seconds")

GROUPS = _gauge("kafka_coordinator_group_groupmetadatamanager_numgroups", "Consumer groups coordinated here.")
OFFSETS = _gauge("kafka_coordinator_group_groupmetadatamanager_numoffsets", "Committed offsets of those groups.")
GROUPS_BY_STATE = _gauge(
    "kafka_coordinator_group_groupmetadatamanager_numgroups_by_state", "Those groups, by state.", "", ("state",)
)

_DIRECTORY = ("logDirectory",)
OFFLINE_DIRECTORIES = _gauge("kafka_log_logmanager_offlinelogdirectorycount", "Log directories that are offline.")
DIRECTORY_OFFLINE = _gauge(
    "kafka_log_logmanager_logdirectoryoffline", "1 when the log directory is offline, else 0.", "", _DIRECTORY
)
DIRECTORY_USABLE = _gauge(
    "odradek_log_directory_usable_bytes", "Free space on the disk of a log directory.", "bytes", _DIRECTORY
)
RESERVE_REACHED = _gauge(
    "odradek_log_directory_reserve_reached",
    "1 when clients cannot write because only log.dir.reserve.bytes are left, else 0.",
    "",
    _DIRECTORY,
)
CORRUPTIONS = _counter("odradek_log_corruptions", "Damaged places found in log files.", "", _DIRECTORY)
SCRUBBED = _counter("odradek_log_scrub_bytes", "Bytes of sealed segments read again to find damage.", "bytes")
SCRUB_PASS_ENDED = _gauge(
    "odradek_log_scrub_last_full_pass_timestamp_seconds",
    "When the last pass over all sealed segments ended; 0 before the first.",
    "seconds since 1970",
)

CLEAN_TIME = _gauge(
    "kafka_log_logcleaner_max_clean_time_secs", "Longest of the last cleanings of all cleaner threads.", "seconds"
)
RECOPY_PERCENT = _gauge(
    "kafka_log_logcleaner_cleaner_recopy_percent", "Bytes that the last cleanings kept of those they read.", "percent"
)
BUFFER_UTILIZATION = _gauge(
    "kafka_log_logcleaner_max_buffer_utilization_percent",
    "Fullest map of keys in the last cleanings.",
    "percent",
)
COMPACTION_DELAY = _gauge(
    "kafka_log_logcleaner_max_compaction_delay_secs",
    "Time by which the most overdue log exceeds max.compaction.lag.ms.",
    "seconds",
)
DEAD_CLEANERS = _gauge(
    "kafka_log_logcleaner_deadthreadcount", "Cleaner threads whose worker died and that have not cleaned since."
)
DIRTY_PERCENT = _gauge(
    "kafka_log_logcleanermanager_max_dirty_percent", "Uncleaned part of the dirtiest log.", "percent"
)
SINCE_CLEANER_RUN = _gauge(
    "kafka_log_logcleanermanager_time_since_last_run_ms",
    "Time since the cleaner last looked for logs to clean.",
    "milliseconds",
)
UNCLEANABLE = _gauge(
    "kafka_log_logcleanermanager_uncleanable_partitions_count",
    "Partitions that are not cleaned after an error.",
    "",
    _DIRECTORY,
)
UNCLEANABLE_BYTES = _gauge(
    "kafka_log_logcleanermanager_uncleanable_bytes", "Uncleaned bytes of those partitions.", "bytes", _DIRECTORY
)

MOVE_LAG = _gauge(
    "kafka_server_replicaalterlogdirsmanager_maxlag",
    "Lag of the slowest move of a replica between log directories.",
    "offsets",
)
FAILED_MOVES = _gauge(
    "kafka_server_replicaalterlogdirsmanager_failedpartitionscount", "Moves between log directories that failed."
)
MOVED_BYTES = _counter("kafka_server_alterlogdirsreplication_bytes", "Bytes copied between log directories.", "bytes")

UNCLEAN_ELECTIONS = _counter(
    "kafka_controller_controllerstats_uncleanleaderelections",
    "Leaders that this broker, as the controller, elected out of replicas that were not in sync.",
)
