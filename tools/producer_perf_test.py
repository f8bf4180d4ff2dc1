"""kafka-producer-perf-test: measure how fast a topic can be written (Kafka class `ProducerPerformance`).

Without a throughput limit, records are sent in full batches from the start, as by a busy Java producer; a record's
latency then begins when the producer gets its batch.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import re
import sys
from array import array
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path

from client.batches import RecordMetadata, record_size
from client.producer import Producer
from client.settings import ProducerSettings
from protocol.records.batch import HEADER_BYTES
from tools.support.common import ToolError, make_client, now_ms, read_properties, run_work
from tools.support.options import ArgumentParser, whole_number
from tools.support.performance import Throttle, print_metrics
from tools.support.terminal import Progress

REPORT_EVERY_MS = 5_000
MAX_SAMPLES = 500_000
_LETTERS = bytes(ord("A") + byte % 26 for byte in range(256))


def make_parser() -> ArgumentParser:
    """The parser of the tool's options."""
    parser = ArgumentParser("producer-performance", "Measure how fast a topic can be written.")
    long = whole_number("Long")
    parser.add_argument("--topic", required=True, metavar="TOPIC", help="the topic to write to")
    parser.add_argument(
        "--num-records", required=True, type=long, metavar="NUM-RECORDS", help="how many records to send"
    )
    parser.add_argument(
        "--payload-delimiter", default="\\n", help="what separates the payloads in --payload-file (default: a line end)"
    )
    parser.add_argument(
        "--throughput",
        required=True,
        type=float,
        metavar="THROUGHPUT",
        help="records a second to keep to; -1: no limit",
    )
    parser.add_argument(
        "--producer-props", nargs="+", metavar="PROP-NAME=PROP-VALUE", help="properties of the producer"
    )
    parser.add_argument("--producer.config", dest="config", metavar="CONFIG-FILE", help="a file with such properties")
    parser.add_argument("--print-metrics", action="store_true", help="show the producer's counts at the end")
    parser.add_argument(
        "--transactional-id",
        metavar="TRANSACTIONAL-ID",
        default="performance-producer-default-transactional-id",
        help="the transactional id, with --transaction-duration-ms (default: %(default)s)",
    )
    parser.add_argument(
        "--transaction-duration-ms",
        type=long,
        default=0,
        metavar="TRANSACTION-DURATION",
        help="send in transactions that are committed at this age; 0: without transactions",
    )
    payload = parser.add_mutually_exclusive_group(required=True)
    payload.add_argument("--record-size", type=whole_number("Integer"), help="send random letters, this many a record")
    payload.add_argument("--payload-file", help="send payloads of this file, chosen at random")
    payload.add_argument("--payload-monotonic", action="store_true", help="send the numbers from 0 on")
    return parser


class Transactions:
    """Begins transactions, and commits each after `duration_ms`; does nothing if that is 0."""

    def __init__(self, producer: Producer, duration_ms: int) -> None:
        self._producer = producer
        self._duration_ms = duration_ms
        self._start_ms: int | None = None

    async def init(self) -> None:
        """Initialize the producer's transactions; call it before everything else."""
        if self._duration_ms > 0:
            await self._producer.init_transactions()

    def before_send(self) -> None:
        """Begin a transaction unless one is open."""
        if self._duration_ms > 0 and self._start_ms is None:
            self._producer.begin_transaction()
            self._start_ms = now_ms()

    async def after_send(self) -> None:
        """Commit the transaction if it is old enough."""
        if self._start_ms is not None and now_ms() - self._start_ms >= self._duration_ms:
            await self.commit()

    async def commit(self) -> None:
        """Commit the open transaction, if any."""
        if self._start_ms is not None:
            await self._producer.commit_transaction()
            self._start_ms = None


class Statistics:
    """Counts and latencies, of the whole run and of the last five seconds."""

    def __init__(self, num_records: int) -> None:
        self._start_ms = self._window_start_ms = now_ms()
        self._sample_every = max(num_records // min(max(num_records, 1), MAX_SAMPLES), 1)
        self._latencies = array("q")
        self._count = self._bytes = self._total_latency_ms = self._max_latency_ms = 0
        self._window_count = self._window_bytes = self._window_latency_ms = self._window_max_ms = 0

    def record(self, count: int, size_bytes: int, latency_ms: int) -> None:
        """Add `count` records with a total of `size_bytes` and a latency of `latency_ms` each."""
        samples = (self._count + count - 1) // self._sample_every - (self._count - 1) // self._sample_every
        self._latencies.extend((latency_ms,) * samples)
        self._count += count
        self._bytes += size_bytes
        self._total_latency_ms += latency_ms * count
        self._max_latency_ms = max(self._max_latency_ms, latency_ms)
        self._window_count += count
        self._window_bytes += size_bytes
        self._window_latency_ms += latency_ms * count
        self._window_max_ms = max(self._window_max_ms, latency_ms)
        if now_ms() - self._window_start_ms >= REPORT_EVERY_MS:
            self._print_window()

    def _print_window(self) -> None:
        elapsed_ms = now_ms() - self._window_start_ms
        count = self._window_count
        print(
            f"{count} records sent, {1000.0 * count / elapsed_ms:.1f} records/sec "
            f"({1000.0 * self._window_bytes / elapsed_ms / 1048576:.2f} MB/sec), "
            f"{self._window_latency_ms / count:.1f} ms avg latency, {self._window_max_ms:.1f} ms max latency.",
            flush=True,
        )
        self._window_start_ms = now_ms()
        self._window_count = self._window_bytes = self._window_latency_ms = self._window_max_ms = 0

    def print_total(self) -> None:
        """Print the final line of Kafka's tool."""
        elapsed_ms = max(now_ms() - self._start_ms, 1)
        ordered = sorted(self._latencies)
        percentiles = [ordered[int(part * len(ordered))] if ordered else 0 for part in (0.5, 0.95, 0.99, 0.999)]
        print(
            f"{self._count} records sent, {1000.0 * self._count / elapsed_ms:.6f} records/sec "
            f"({1000.0 * self._bytes / elapsed_ms / 1048576:.2f} MB/sec), "
            f"{self._total_latency_ms / max(self._count, 1):.2f} ms avg latency, {self._max_latency_ms:.2f} ms max "
            f"latency, {percentiles[0]} ms 50th, {percentiles[1]} ms 95th, {percentiles[2]} ms 99th, "
            f"{percentiles[3]} ms 99.9th."
        )

    def metrics(self, client_id: str, topic: str, failures: int) -> dict[str, float]:
        """Kafka's metrics, as far as this client has them. Rates cover the whole run."""
        elapsed_s = max(now_ms() - self._start_ms, 1) / 1000
        counts = {"record-send": self._count, "record-error": failures, "byte": self._bytes}
        found: dict[str, float] = {}
        for name, count in counts.items():
            for kind, value in (("total", count), ("rate", count / elapsed_s)):
                found[f"producer-topic-metrics:{name}-{kind}:{{client-id={client_id}, topic={topic}}}"] = value
                if name != "byte":
                    found[f"producer-metrics:{name}-{kind}:{{client-id={client_id}}}"] = value
        return found


class Outcomes:
    """Counts delivered records; keeps the reasons of failures."""

    def __init__(self, statistics: Statistics, progress: Progress) -> None:
        self.failures: list[BaseException] = []
        self._statistics = statistics
        self._progress = progress

    def watch(self, delivery: asyncio.Future[RecordMetadata], values: Sequence[bytes]) -> None:
        """Record the outcome of `values`, sent together, when `delivery` is done."""
        start_ms = now_ms()
        size_bytes = sum(map(len, values))
        count = len(values)

        def done(delivery: asyncio.Future[RecordMetadata]) -> None:
            failure = None if delivery.cancelled() else delivery.exception()
            if failure is not None:
                self.failures.append(failure)
            else:
                self._statistics.record(count, size_bytes, now_ms() - start_ms)
            self._progress.advance(count)

        delivery.add_done_callback(done)


def read_payloads(path: str, delimiter: str) -> list[bytes]:
    """The payloads of a file, split as Kafka's tool splits it; `delimiter` is a regular expression, as there.

    Raises ToolError if the file holds none, or if `delimiter` is invalid.
    """
    print(f"Reading payloads from: {Path(path).absolute()}")
    file = Path(path)
    text = file.read_bytes() if file.is_file() else b""
    if not text:
        raise ToolError("File does not exist or empty file provided.")
    try:
        pattern = re.compile(delimiter.encode())
    except re.error as error:
        raise ToolError(f"--payload-delimiter {delimiter} is not a regular expression: {error}") from None
    payloads = pattern.split(text)[:: pattern.groups + 1]  # skip the text that groups matched
    while payloads and not payloads[-1]:
        payloads.pop()
    print(f"Number of messages read: {len(payloads)}")
    return payloads


Payloads = Callable[[int], list[bytes]]
"""Returns the requested number of values."""


def make_payloads(arguments: argparse.Namespace, rng: random.Random) -> Payloads:
    """The source of the values. Raises ToolError."""
    if arguments.payload_monotonic:
        numbers = (b"%d" % number for number in range(arguments.num_records))
        return lambda count: list(islice(numbers, count))
    if arguments.payload_file is not None:
        payloads = read_payloads(arguments.payload_file, arguments.payload_delimiter)
        return lambda count: rng.choices(payloads, k=count)
    return partial(_random_letters, rng, arguments.record_size)


def _random_letters(rng: random.Random, size: int, count: int) -> list[bytes]:
    letters = rng.randbytes(size * count).translate(_LETTERS)
    return [letters[at : at + size] for at in range(0, size * count, size)] if size else [b""] * count


def producer_settings(arguments: argparse.Namespace) -> dict[str, str]:
    """The properties of the producer. Raises ToolError, OSError, ConfigError."""
    values = {"client.id": "perf-producer-client"}
    if arguments.config is not None:
        values.update(read_properties(arguments.config))
    for pair in arguments.producer_props or ():
        key, equals, value = pair.partition("=")
        if not equals:
            raise ToolError(f"Invalid property: {pair}")
        values[key] = value
    if arguments.transaction_duration_ms > 0:
        values["transactional.id"] = arguments.transactional_id
    return values


async def work(arguments: argparse.Namespace) -> int:
    """Send, and print the rates."""
    values = producer_settings(arguments)
    settings = ProducerSettings.parse(values)
    payloads = make_payloads(arguments, random.Random())  # noqa: S311  payloads, not secrets
    statistics = Statistics(arguments.num_records)
    progress = Progress("Sending", "records", arguments.num_records, prints=True)
    outcomes = Outcomes(statistics, progress)
    async with make_client(None, values) as client, Producer(client, settings, now_ms) as producer:
        transactions = Transactions(producer, arguments.transaction_duration_ms)
        await transactions.init()
        send = _send_full_batches if arguments.throughput < 0 else _send_throttled
        with progress:
            await send(producer, arguments, payloads, transactions, outcomes)
            await transactions.commit()
            await producer.flush()
    for failure in outcomes.failures[:10]:
        print(failure, file=sys.stderr)
    statistics.print_total()
    if arguments.print_metrics:
        print_metrics(statistics.metrics(values["client.id"], arguments.topic, len(outcomes.failures)))
    return 0


async def _send_full_batches(
    producer: Producer,
    arguments: argparse.Namespace,
    payloads: Payloads,
    transactions: Transactions,
    outcomes: Outcomes,
) -> None:
    sent = 0
    values: list[bytes] = []
    room = producer.settings.batch_size_bytes - HEADER_BYTES
    uniform = None
    if arguments.record_size is not None:
        uniform = max(room // record_size(None, bytes(arguments.record_size)), 1)
    while sent < arguments.num_records:
        if uniform is not None:
            chunk = payloads(min(arguments.num_records - sent, uniform))
        else:
            values = values or payloads(min(arguments.num_records - sent, 1000))
            chunk = list(_batchful(values, room))
            del values[: len(chunk)]
        transactions.before_send()
        outcomes.watch(await producer.send_batch(arguments.topic, chunk), chunk)
        await transactions.after_send()
        sent += len(chunk)


def _batchful(values: Sequence[bytes], room: int) -> Iterator[bytes]:
    """The first values that fit into `room` bytes of a batch, at least one."""
    for index, value in enumerate(values):
        room -= record_size(None, value)
        if room < 0 and index:
            return
        yield value


async def _send_throttled(
    producer: Producer,
    arguments: argparse.Namespace,
    payloads: Payloads,
    transactions: Transactions,
    outcomes: Outcomes,
) -> None:
    throttle = Throttle(arguments.throughput)
    for sent in range(arguments.num_records):
        await throttle.wait(sent)
        (value,) = payloads(1)
        transactions.before_send()
        outcomes.watch(await producer.send(arguments.topic, value), [value])
        await transactions.after_send()


def main(argv: list[str]) -> int:
    """Run the tool; returns its exit code."""
    parser = make_parser()
    arguments = parser.read(argv)
    if isinstance(arguments, int):
        return arguments
    if arguments.producer_props is None and arguments.config is None:
        print(
            "producer-performance: error: Either --producer-props or --producer.config must be specified.",
            file=sys.stderr,
        )
        return 1
    return run_work(lambda: work(arguments))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
