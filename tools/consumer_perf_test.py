"""kafka-consumer-perf-test: measure how fast a topic can be read (Kafka class `ConsumerPerformance`)."""

from __future__ import annotations

import random
import sys
from datetime import datetime

from client.consumer import Consumer
from client.fetcher import FetchedBatch
from client.settings import ConsumerSettings
from protocol.topic_partition import TopicPartition
from tools.support.common import BOOTSTRAP_SERVER, make_client, now_ms, read_properties, run_tool
from tools.support.java_dates import format_date
from tools.support.options import Option, OptionParser, Options, UsageError
from tools.support.performance import print_metrics
from tools.support.terminal import Progress

_MIB = 1024 * 1024
_POLL_S = 0.1

PARSER = OptionParser(
    "Measure how fast a topic can be read.",
    [
        BOOTSTRAP_SERVER,
        Option("broker-list", "Deprecated name of --bootstrap-server.", "host:port,..."),
        Option("topic", "Required: the topic to read.", "topic"),
        Option("messages", "Required: how many records to read.", "count", "Long"),
        Option("group", "The group to read as; a new one when it is not given.", "group id"),
        Option("fetch-size", "How much to fetch of a partition at once.", "bytes", "Integer", default="1048576"),
        Option("from-latest", "Begin at the end when the group has not read the topic yet."),
        Option("socket-buffer-size", "Accepted for compatibility.", "bytes", "Integer", default="2097152"),
        Option(
            "timeout", "End when no record comes for this long.", "ms", "Long", default="10000", argument_optional=True
        ),
        Option("reporting-interval", "How often to report with --show-detailed-stats.", "ms", "Long", default="5000"),
        Option("show-detailed-stats", "Report again and again, not only at the end."),
        Option("hide-header", "Leave the line with the columns' names out."),
        Option(
            "date-format",
            "How times are shown, as SimpleDateFormat has it.",
            "format",
            default="yyyy-MM-dd HH:mm:ss:SSS",
        ),
        Option("print-metrics", "Print the consumer's metrics at the end."),
        Option("consumer.config", "A file with properties for the consumer.", "property file"),
        Option("threads", "Deprecated; without effect.", "count", "Integer", default="10"),
        Option("num-fetch-threads", "Deprecated; without effect.", "count", "Integer", default="1"),
    ],
)


def check(options: Options) -> None:
    """Raise UsageError for missing options."""
    options.require("topic", "messages")
    if not options.has("bootstrap-server") and not options.has("broker-list"):
        raise UsageError("Missing required option(s) [bootstrap-server]")
    for name in ("messages", "fetch-size", "reporting-interval", "timeout"):
        options.number(name)


class _RebalanceClock:
    """Measures how long the group takes to assign partitions."""

    def __init__(self) -> None:
        self.joined_ms = 0
        self._since_ms = now_ms()

    async def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
        """Stop the clock: the rebalance is done."""
        del partitions
        self.joined_ms += now_ms() - self._since_ms

    async def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
        """Start the clock: a rebalance begins."""
        del partitions
        self._since_ms = now_ms()


class _Report:
    """Counts the records read, and prints the report lines."""

    def __init__(self, options: Options, clock: _RebalanceClock) -> None:
        self.count = 0
        self.bytes = 0
        self.start_ms = now_ms()
        self._clock = clock
        self._date_format = options.required_text("date-format")
        self._interval_ms = options.required_number("reporting-interval")
        self._is_detailed = options.has("show-detailed-stats")
        self._last_ms = self.start_ms
        self._last = (0, 0, 0)
        if not options.has("hide-header"):
            first = "time, threadId" if self._is_detailed else "start.time, end.time"
            print(
                f"{first}, data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec, rebalance.time.ms, "
                "fetch.time.ms, fetch.MB.sec, fetch.nMsg.sec"
            )

    def add(self, batches: list[FetchedBatch], limit: int) -> None:
        """Count the records of some batches, up to a total of `limit`."""
        for batch in batches:
            records = list(batch.records())
            del records[max(limit - self.count, 0) :]
            self.count += len(records)
            if records:
                _, _, keys, values, _ = zip(*records, strict=True)
                self.bytes += sum(map(len, filter(None, keys))) + sum(map(len, filter(None, values)))

    def tick(self) -> None:
        """Print a line if one is due."""
        now = now_ms()
        if not self._is_detailed or now - self._last_ms < self._interval_ms:
            return
        count, size, joined_ms = self._last
        self._last = (self.count, self.bytes, self._clock.joined_ms)
        self._print_row(
            f"{self._shown(now)}, 0", now - self._last_ms, self.bytes - size, self.count - count,
            self._clock.joined_ms - joined_ms, total_bytes=self.bytes, total_count=self.count,
        )  # fmt: skip
        self._last_ms = now

    def finish(self) -> None:
        """Print the final line, unless earlier lines were printed."""
        if self._is_detailed:
            return
        end_ms = now_ms()
        self._print_row(
            f"{self._shown(self.start_ms)}, {self._shown(end_ms)}", end_ms - self.start_ms, self.bytes, self.count,
            self._clock.joined_ms, total_bytes=self.bytes, total_count=self.count,
        )  # fmt: skip

    def metrics(self, client_id: str, topic: str) -> dict[str, float]:
        """Kafka's metrics, as far as this client has them. Rates cover the whole run."""
        elapsed_s = max(now_ms() - self.start_ms, 1) / 1000
        found: dict[str, float] = {}
        for name, count in (("records-consumed", self.count), ("bytes-consumed", self.bytes)):
            for kind, value in (("total", count), ("rate", count / elapsed_s)):
                found[f"consumer-fetch-manager-metrics:{name}-{kind}:{{client-id={client_id}}}"] = value
                found[f"consumer-fetch-manager-metrics:{name}-{kind}:{{client-id={client_id}, topic={topic}}}"] = value
        found[f"consumer-coordinator-metrics:rebalance-latency-total:{{client-id={client_id}}}"] = self._clock.joined_ms
        return found

    def _shown(self, timestamp_ms: int) -> str:
        return format_date(datetime.fromtimestamp(timestamp_ms / 1000).astimezone(), self._date_format)

    @staticmethod
    def _print_row(
        times: str, elapsed_ms: int, size: int, count: int, joined_ms: int, *, total_bytes: int, total_count: int
    ) -> None:
        elapsed_s = max(elapsed_ms, 1) / 1000
        fetch_ms = max(elapsed_ms - joined_ms, 0)
        fetch_s = max(fetch_ms, 1) / 1000
        print(
            f"{times}, {total_bytes / _MIB:.4f}, {size / _MIB / elapsed_s:.4f}, {total_count}, "
            f"{count / elapsed_s:.4f}, {joined_ms}, {fetch_ms}, {size / _MIB / fetch_s:.4f}, {count / fetch_s:.4f}",
            flush=True,
        )


def consumer_properties(options: Options) -> dict[str, str]:
    """The properties of the consumer. Raises OSError, ConfigError."""
    path = options.text("consumer.config")
    values = {"client.id": "perf-consumer-client", **(read_properties(path) if path is not None else {})}
    group = random.Random().randrange(100_000)  # noqa: S311  a group name, not a secret
    values["group.id"] = options.text("group") or f"perf-consumer-{group}"
    values["max.partition.fetch.bytes"] = options.required_text("fetch-size")
    values["auto.offset.reset"] = "latest" if options.has("from-latest") else "earliest"
    values["check.crcs"] = "false"
    return values


async def work(options: Options) -> int:
    """Read, and print the rates."""
    values = consumer_properties(options)
    limit = options.required_number("messages")
    timeout_ms = options.required_number("timeout") if options.text("timeout") else 10_000
    servers = options.text("bootstrap-server") or options.required_text("broker-list")
    clock = _RebalanceClock()
    report = _Report(options, clock)
    async with (
        make_client(servers, values, client_id="perf-consumer-client") as client,
        Consumer(client, ConsumerSettings.parse(values)) as consumer,
    ):
        consumer.subscribe([options.required_text("topic")], clock)
        with Progress("Reading", "records", limit) as progress:
            last_ms = now_ms()
            while report.count < limit and now_ms() - last_ms <= timeout_ms:
                fetched = await consumer.poll_batches(_POLL_S)
                if fetched:
                    last_ms = now_ms()
                for batches in fetched.values():
                    report.add(batches, limit)
                    report.tick()
                progress.advance(report.count - progress.done)
        if report.count < limit:
            print(
                f"WARNING: Exiting before consuming the expected number of messages: timeout ({timeout_ms} ms) "
                "exceeded. You can use the --timeout option to increase the timeout."
            )
        report.finish()
        if options.has("print-metrics"):
            print_metrics(report.metrics(values["client.id"], options.required_text("topic")))
    return 0


def main(argv: list[str]) -> int:
    """Run the tool; returns its exit code."""
    return run_tool(argv, PARSER, check, work)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
