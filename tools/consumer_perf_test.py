"""kafka-consumer-perf-test: how fast a topic can be read (Kafka class `ConsumerPerformance`).

What a poll brings is counted as a whole, so that more records than asked for may be read, as with Kafka's tool; here a
poll brings all that has been fetched instead of `max.poll.records`.
"""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass

from client.consumer import Consumer
from client.fetcher import FetchedBatch
from client.settings import ConsumerSettings
from protocol.topic_partition import TopicPartition
from tools.common import ToolError, make_client, now_ms, read_properties, run_tool
from tools.date_format import DateFormat
from tools.metric_lines import print_metrics
from tools.options import Option, OptionParser, Options, UsageError

_MEBIBYTE = 1024 * 1024
_POLL_S = 0.1

PARSER = OptionParser(
    "Measure how fast a topic can be read.",
    [
        Option("bootstrap-server", "Required: the brokers to connect to.", "server to connect to"),
        Option("broker-list", "Deprecated name of --bootstrap-server.", "broker-list"),
        Option("topic", "Required: the topic to read.", "topic"),
        Option("messages", "Required: how many records to read.", "count", "Long"),
        Option("group", "The group to read as (default: perf-consumer- and a random number).", "gid"),
        Option("fetch-size", "Bytes to fetch of a partition at once.", "size", "Integer", default="1048576"),
        Option("from-latest", "Begin at the end of the topic when the group has not read it yet."),
        Option("socket-buffer-size", "Size of receive buffers.", "size", "Integer", default="2097152"),
        Option("consumer.config", "A file with properties for the consumer.", "config file"),
        Option("print-metrics", "Print the consumer's metrics at the end."),
        Option("show-detailed-stats", "Print a line for every --reporting-interval instead of one at the end."),
        Option(
            "timeout",
            "End when no record comes for this long.",
            "milliseconds",
            "Long",
            default="10000",
            argument_optional=True,
        ),
        Option("reporting-interval", "See --show-detailed-stats.", "interval_ms", "Long", default="5000"),
        Option("hide-header", "Leave out the line with the names of columns."),
        Option(
            "date-format",
            "How times are shown, a pattern of Java's SimpleDateFormat.",
            "date format",
            default="yyyy-MM-dd HH:mm:ss:SSS",
        ),
        Option("threads", "Deprecated and ignored.", "count", "Integer", default="10"),
        Option("num-fetch-threads", "Deprecated and ignored.", "count", "Integer", default="1"),
    ],
)


def check(options: Options) -> None:
    """Raise UsageError for what is missing."""
    if not options.has("bootstrap-server") and not options.has("broker-list"):
        raise UsageError("Missing required option(s) [bootstrap-server]")
    options.require("topic", "messages")


@dataclass(slots=True)
class _Read:
    """What has been read so far."""

    count: int = 0
    size_bytes: int = 0


class _JoinTime:
    """How long the group has kept us from reading, in ms. The first time begins when this is made."""

    def __init__(self) -> None:
        self.total_ms = 0
        self.round_ms = 0
        self._since_ms = now_ms()

    async def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:  # noqa: ARG002
        """A rebalance begins."""
        self._since_ms = now_ms()

    async def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:  # noqa: ARG002
        """It is over."""
        elapsed_ms = now_ms() - self._since_ms
        self.total_ms += elapsed_ms
        self.round_ms += elapsed_ms


class _Progress:
    """The lines of --show-detailed-stats, each about what was read since the one before."""

    def __init__(self, dates: DateFormat, interval_ms: int, start_ms: int, *, is_shown: bool) -> None:
        self._dates = dates
        self._interval_ms = interval_ms
        self._is_shown = is_shown
        self._last_ms = start_ms
        self._last = _Read()

    def tell(self, read: _Read, join: _JoinTime, time_ms: int) -> None:
        """Print a line when it is time for one."""
        elapsed_ms = time_ms - self._last_ms
        if elapsed_ms < self._interval_ms:
            return
        if self._is_shown:
            count = read.count - self._last.count
            megabytes = (read.size_bytes - self._last.size_bytes) / _MEBIBYTE
            fetch_ms = elapsed_ms - join.round_ms
            print(
                f"{self._dates.format(time_ms)}, 0, {read.size_bytes / _MEBIBYTE:.4f}, "
                f"{per_second(megabytes, elapsed_ms)}, {read.count}, {per_second(count, elapsed_ms)}, "
                f"{join.round_ms}, {fetch_ms}, {per_second(megabytes, fetch_ms)}, {per_second(count, fetch_ms)}",
                flush=True,
            )
        join.round_ms = 0
        self._last_ms = time_ms
        self._last = _Read(read.count, read.size_bytes)


def per_second(amount: float, elapsed_ms: int) -> str:
    """A rate with four digits; 0 when there was no time."""
    return f"{amount * 1000 / elapsed_ms if elapsed_ms > 0 else 0.0:.4f}"


def consumer_properties(options: Options, rng: random.Random) -> dict[str, str]:
    """What the consumer is told; options go before the file. Raises OSError, ConfigError, OptionError."""
    path = options.text("consumer.config")
    values = {"client.id": "perf-consumer-client", **(read_properties(path) if path is not None else {})}
    values["group.id"] = options.text("group") or f"perf-consumer-{rng.randrange(100_000)}"
    values["receive.buffer.bytes"] = str(options.required_number("socket-buffer-size"))
    values["max.partition.fetch.bytes"] = str(options.required_number("fetch-size"))
    values["auto.offset.reset"] = "latest" if options.has("from-latest") else "earliest"
    values["check.crcs"] = "false"
    return values


def print_header(*, is_detailed: bool) -> None:
    """The names of columns."""
    times = "time, threadId" if is_detailed else "start.time, end.time"
    print(
        f"{times}, data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec, rebalance.time.ms, fetch.time.ms, "
        "fetch.MB.sec, fetch.nMsg.sec"
    )


async def work(options: Options) -> int:
    """Read, then print the report."""
    is_detailed = options.has("show-detailed-stats")
    if not options.has("hide-header"):
        print_header(is_detailed=is_detailed)
    values = consumer_properties(options, random.Random())  # noqa: S311  a name for a group, no secret
    servers = options.text("bootstrap-server") or options.required_text("broker-list")
    try:
        dates = DateFormat(options.required_text("date-format"))
    except ValueError as error:
        raise ToolError(str(error)) from None
    async with make_client(servers, values) as client:
        consumer = Consumer(client, ConsumerSettings.parse(values))
        try:
            start_ms = now_ms()
            join = _JoinTime()
            progress = _Progress(dates, options.required_number("reporting-interval"), start_ms, is_shown=is_detailed)
            read = await _read(consumer, options, join, progress)
            end_ms = now_ms()
        finally:
            await consumer.close()
    if not is_detailed:
        print(_report(read, join, start_ms, end_ms, dates))
    if options.has("print-metrics"):
        tags = f"{{client-id={client.settings.client_id}}}"
        print_metrics(
            {
                f"consumer-fetch-manager-metrics:bytes-consumed-total:{tags}": read.size_bytes,
                f"consumer-fetch-manager-metrics:records-consumed-total:{tags}": read.count,
            }
        )
    return 0


async def _read(consumer: Consumer, options: Options, join: _JoinTime, progress: _Progress) -> _Read:
    """Read until there have been enough records, or none for too long."""
    wanted = options.required_number("messages")
    timeout_ms = options.required_number("timeout")
    consumer.subscribe([options.required_text("topic")], join)
    read = _Read()
    last_read_ms = time_ms = now_ms()
    while read.count < wanted and time_ms - last_read_ms <= timeout_ms:
        fetched = await consumer.poll_batches(_POLL_S)
        time_ms = now_ms()
        if not fetched:
            continue
        last_read_ms = time_ms
        for batches in fetched.values():
            for batch in batches:
                _count(batch, read)
        progress.tell(read, join, time_ms)
    if read.count < wanted:
        print(
            "WARNING: Exiting before consuming the expected number of messages: timeout "
            f"({timeout_ms} ms) exceeded. You can use the --timeout option to increase the timeout."
        )
    return read


def _count(batch: FetchedBatch, read: _Read) -> None:
    records = list(batch.records())
    read.count += len(records)
    read.size_bytes += sum([len(record[3] or b"") + len(record[2] or b"") for record in records])


def _report(read: _Read, join: _JoinTime, start_ms: int, end_ms: int, dates: DateFormat) -> str:
    megabytes = read.size_bytes / _MEBIBYTE
    elapsed_ms = end_ms - start_ms
    fetch_ms = elapsed_ms - join.total_ms
    return (
        f"{dates.format(start_ms)}, {dates.format(end_ms)}, {megabytes:.4f}, {per_second(megabytes, elapsed_ms)}, "
        f"{read.count}, {per_second(read.count, elapsed_ms)}, {join.total_ms}, {fetch_ms}, "
        f"{per_second(megabytes, fetch_ms)}, {per_second(read.count, fetch_ms)}"
    )


def main(argv: list[str]) -> int:
    """Run the tool; returns its exit code."""
    return run_tool(argv, PARSER, check, work)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
