"""kafka-producer-perf-test: how fast records can be sent (Kafka class `ProducerPerformance`).

Records are made and sent as batches of `batch.size`, which keeps the tool itself out of the measurement as far as
Python allows; a record's latency is that of its batch. What stops a batch is told once, not for each of its records.
"""

from __future__ import annotations

import asyncio
import random
import re
import sys
import time
from argparse import Namespace
from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from pathlib import Path

from client.batches import RecordMetadata, record_size
from client.errors import ClientError
from client.producer import Producer
from client.settings import ProducerSettings
from protocol.errors import ApiError
from protocol.records import HEADER_BYTES
from tools.arguments import ArgumentParser, double, int32, int64, run_parsed
from tools.common import ToolError, make_client, now_ms, parse_pairs, read_properties, reason
from tools.error_texts import exception_name
from tools.latency_stats import LatencyStats
from tools.metric_lines import print_metrics
from tools.throttle import Throttle

_POOL_BYTES = 1 << 21
_LETTERS = bytes(ord("A") + number % 26 for number in range(256))

MakeValues = Callable[[int], Sequence[bytes]]
"""Gives as many payloads as asked for, or fewer when that many do not fit in a batch; at least one."""


def make_parser() -> ArgumentParser:
    """The options, in Kafka's order."""
    parser = ArgumentParser("producer-performance", description="Measure how fast a topic can be written.")
    add = parser.add_argument
    add("--topic", required=True, help="the topic to write to")
    add("--num-records", required=True, type=int64, help="how many records to send")
    add(
        "--payload-delimiter",
        default="\\n",
        help=r"regular expression between the payloads in --payload-file (default: \n)",
    )
    add("--throughput", required=True, type=double, help="records per second to stay below; -1 for no limit")
    add(
        "--producer-props",
        nargs="+",
        metavar="PROP-NAME=PROP-VALUE",
        help="properties for the producer; they go before those of --producer.config",
    )
    add("--producer.config", dest="config", metavar="CONFIG-FILE", help="a file with properties for the producer")
    add("--print-metrics", action="store_true", help="print the producer's metrics at the end")
    add("--transactional-id", help="not supported yet, as --transaction-duration-ms")
    add("--transaction-duration-ms", type=int64, default=0, metavar="TRANSACTION-DURATION", help="0; see above")
    payload = parser.add_mutually_exclusive_group(required=True)
    payload.add_argument("--record-size", type=int32, help="send random payloads of so many bytes")
    payload.add_argument("--payload-file", help="send payloads of this UTF-8 file, chosen at random")
    payload.add_argument("--payload-monotonic", action="store_true", help="send the numbers from 0 on")
    return parser


class _Run:
    """One measurement: sends batches and counts what becomes of them."""

    def __init__(self, topic: str, producer: Producer) -> None:
        self.failed = 0
        self.stats = LatencyStats(_clock_ms())
        self._topic = topic
        self._producer = producer

    async def send(self, values: Sequence[bytes]) -> None:
        """Queue a batch; waits for room."""
        sent_ms = _clock_ms()
        try:
            delivery = await self._producer.send_batch(self._topic, values)
        except (ApiError, ClientError) as error:
            self._failed(len(values), error)
            return
        delivery.add_done_callback(partial(self._done, len(values), sum(map(len, values)), sent_ms))

    def _done(self, count: int, size_bytes: int, sent_ms: float, delivery: asyncio.Future[RecordMetadata]) -> None:
        error = None if delivery.cancelled() else delivery.exception()
        if error is not None:
            self._failed(count, error)
        elif not delivery.cancelled():
            self.stats.add(count, size_bytes, sent_ms, _clock_ms())

    def _failed(self, count: int, error: BaseException) -> None:
        self.failed += count
        print(f"{exception_name(error)}: {reason(error)}", file=sys.stderr)


async def work(arguments: Namespace) -> int:
    """Send, wait for the acknowledgements, print the report."""
    if arguments.transaction_duration_ms > 0:
        raise ToolError("--transaction-duration-ms: transactions are not supported yet")
    payloads = None if arguments.payload_file is None else read_payloads(arguments)
    values = producer_properties(arguments)
    settings = ProducerSettings.parse(values)
    make_values = values_maker(arguments, payloads, settings.batch_size_bytes - HEADER_BYTES)
    async with make_client(None, values, client_id="perf-producer-client") as client:
        async with Producer(client, settings, now_ms) as producer:
            run = _Run(arguments.topic, producer)
            throttle = Throttle(arguments.throughput, settings.linger_ms / 1000)
            remaining = arguments.num_records
            while remaining > 0:
                batch = make_values(remaining)
                allowed = await throttle.take(len(batch))
                while allowed < len(batch):
                    await run.send(batch[:allowed])
                    remaining -= allowed
                    batch = batch[allowed:]
                    allowed = await throttle.take(len(batch))
                await run.send(batch)
                remaining -= len(batch)
        print(run.stats.total_line(_clock_ms()))
    if arguments.print_metrics:
        tags = f"{{client-id={client.settings.client_id}}}"
        print_metrics(
            {
                f"producer-metrics:buffer-total-bytes:{tags}": settings.buffer_memory_bytes,
                f"producer-metrics:record-error-total:{tags}": run.failed,
                f"producer-metrics:record-send-total:{tags}": run.stats.count,
            }
        )
    return 0


def producer_properties(arguments: Namespace) -> dict[str, str]:
    """What the producer is told. Raises ToolError, OSError, ConfigError."""
    if arguments.producer_props is None and arguments.config is None:
        raise ToolError("producer-performance: error: Either --producer-props or --producer.config must be specified.")
    for pair in arguments.producer_props or []:
        if pair.count("=") < 1:
            raise ToolError(f"Invalid property: {pair}")
    from_file = {} if arguments.config is None else read_properties(arguments.config)
    return {**from_file, **parse_pairs(arguments.producer_props or [])}


def read_payloads(arguments: Namespace) -> list[bytes]:
    """The payloads in --payload-file. Raises ToolError when there are none."""
    path = Path(arguments.payload_file).absolute()
    print(f"Reading payloads from: {path}")
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        text = ""
    except UnicodeDecodeError as error:
        raise ToolError(f"{path} is not UTF-8: {error.reason} at byte {error.start}") from None
    if not text:
        raise ToolError("File does not exist or empty file provided.")
    try:
        payloads = [part.encode() for part in re.split(arguments.payload_delimiter, text)]
    except re.error as error:
        raise ToolError(f"--payload-delimiter {arguments.payload_delimiter}: {error}") from None
    while payloads and not payloads[-1]:
        payloads.pop()
    print(f"Number of messages read: {len(payloads)}")
    return payloads


def values_maker(arguments: Namespace, payloads: list[bytes] | None, room_bytes: int) -> MakeValues:
    """What makes the payloads of a batch that takes `room_bytes`."""
    rng = random.Random()  # noqa: S311  payloads, no secrets
    if arguments.record_size is not None:
        return _random_values(arguments.record_size, room_bytes, rng)
    if payloads is not None:
        return _chosen_values(payloads, room_bytes, rng)
    return _counted_values(room_bytes)


def _random_values(size: int, room_bytes: int, rng: random.Random) -> MakeValues:
    """Cuts payloads from a pool of random letters, so that batches neither repeat themselves nor cost much."""
    if size < 0:
        raise ToolError(f"--record-size must not be negative: {size}")
    fitting = max(1, room_bytes // record_size(None, bytes(size)))
    span = fitting * size
    pool = rng.randbytes(max(_POOL_BYTES, 2 * span)).translate(_LETTERS)

    def make(limit: int) -> Sequence[bytes]:
        count = min(limit, fitting)
        if size == 0:
            return [b""] * count
        start = rng.randrange(len(pool) - span + 1)
        return [pool[at : at + size] for at in range(start, start + count * size, size)]

    return make


def _chosen_values(payloads: list[bytes], room_bytes: int, rng: random.Random) -> MakeValues:
    if not payloads:
        raise ToolError("File does not exist or empty file provided.")
    largest = max(payloads, key=len)
    overhead = record_size(None, largest) - len(largest)
    mean = sum(map(len, payloads)) // len(payloads) + overhead
    likely = max(1, 2 * room_bytes // mean)

    def make(limit: int) -> Sequence[bytes]:
        chosen = rng.choices(payloads, k=min(limit, likely))
        ends = list(accumulate(len(value) + overhead for value in chosen))
        return chosen[: max(1, bisect_right(ends, room_bytes))]

    return make


def _counted_values(room_bytes: int) -> MakeValues:
    following = 0

    def make(limit: int) -> Sequence[bytes]:
        nonlocal following
        count = min(limit, max(1, room_bytes // record_size(None, b"%d" % (following + limit))))
        first, following = following, following + count
        return [b"%d" % number for number in range(first, following)]

    return make


def _clock_ms() -> float:
    return time.monotonic() * 1000


def main(argv: list[str]) -> int:
    """Run the tool; returns its exit code."""
    return run_parsed(argv, make_parser(), work)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
