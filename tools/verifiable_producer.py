"""kafka-verifiable-producer: send 0, 1, 2 ... and report the fate of each as JSON (Kafka class `VerifiableProducer`).

For tests that break things: a number was written if and only if its producer_send_success was printed.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Iterator
from itertools import count, cycle

from client.batches import RecordMetadata
from client.errors import ClientError
from client.producer import Producer
from client.settings import ProducerSettings
from protocol.errors import ApiError
from tools.support.common import make_client, now_ms, read_properties, run_work
from tools.support.options import ArgumentParser, whole_number
from tools.support.performance import Throttle, describe_error, print_event


def make_parser() -> ArgumentParser:
    """The parser of the tool's options."""
    parser = ArgumentParser("verifiable-producer", "Send increasing numbers and report on each as JSON.")
    integer = whole_number("Integer")
    servers = parser.add_mutually_exclusive_group(required=True)
    servers.add_argument("--bootstrap-server", metavar="HOST1:PORT1[,...]", help="the brokers to connect to")
    servers.add_argument("--broker-list", metavar="HOST1:PORT1[,...]", help="deprecated name of --bootstrap-server")
    parser.add_argument("--topic", required=True, help="the topic to write to")
    parser.add_argument("--max-messages", type=integer, default=-1, help="how many to send; -1: until killed")
    parser.add_argument("--throughput", type=integer, default=-1, help="records a second to keep to; -1: no limit")
    parser.add_argument("--acks", type=integer, choices=(0, 1, -1), default=-1, help="acknowledgements to wait for")
    parser.add_argument("--producer.config", dest="config", metavar="CONFIG_FILE", help="a file with properties")
    parser.add_argument(
        "--message-create-time", type=integer, default=-1, help="timestamps begin with this, in ms since 1970"
    )
    parser.add_argument("--value-prefix", type=integer, help="every value is this, a dot and the number")
    parser.add_argument("--repeating-keys", type=integer, help="keys are 0 to this less 1, again and again")
    return parser


class _ProducerRun:
    """Counts sent and acknowledged records."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._topic: str = arguments.topic
        self._create_time: int = arguments.message_create_time
        self._start_ms = now_ms()
        self._last_ms = self._start_ms
        self._sent = 0
        self._acked = 0
        self._throughput: int = arguments.throughput

    async def send(self, producer: Producer, key: str | None, value: str) -> None:
        """Send one record, and print its outcome once it is known."""
        self._sent += 1
        timestamp = None
        if self._create_time >= 0:
            timestamp = self._create_time
            self._create_time += now_ms() - self._last_ms
            self._last_ms = now_ms()
        try:
            delivery = await producer.send(
                self._topic, value.encode(), None if key is None else key.encode(), timestamp=timestamp
            )
        except (ApiError, ClientError) as error:
            self._print_failure(key, value, error)
            return
        delivery.add_done_callback(lambda future: self._on_delivery(key, value, future))

    def _on_delivery(self, key: str | None, value: str, delivery: asyncio.Future[RecordMetadata]) -> None:
        failure = None if delivery.cancelled() else delivery.exception()
        if failure is not None:
            self._print_failure(key, value, failure)
            return
        self._acked += 1
        metadata = delivery.result()
        partition = metadata.topic_partition
        print_event(
            "producer_send_success",
            key=key,
            value=value,
            offset=metadata.offset,
            topic=partition.topic,
            partition=partition.partition,
        )

    def _print_failure(self, key: str | None, value: str, error: BaseException) -> None:
        print_event("producer_send_error", topic=self._topic, key=key, value=value, **describe_error(error))

    def print_summary(self) -> None:
        """Print the last line."""
        elapsed_ms = max(now_ms() - self._start_ms, 1)
        print_event(
            "tool_data",
            sent=self._sent,
            acked=self._acked,
            target_throughput=self._throughput,
            avg_throughput=1000 * self._acked / elapsed_ms,
        )


def _keys(repeating: int | None) -> Iterator[str | None]:
    return cycle([None]) if repeating is None else cycle(map(str, range(repeating)))


async def work(arguments: argparse.Namespace) -> int:
    """Send up to the limit, or until cancelled; delivers accepted records in either case.

    Raises CancelledError after the last event when cancelled.
    """
    values = {"client.id": "producer-1", **(read_properties(arguments.config) if arguments.config else {})}
    # Kafka's does not retry either: a record with an unknown outcome must be reported, not sent again.
    values |= {"acks": str(arguments.acks), "retries": "0"}
    numbers = count() if arguments.max_messages < 0 else range(arguments.max_messages)
    prefix = "" if arguments.value_prefix is None else f"{arguments.value_prefix}."
    settings = ProducerSettings.parse(values)
    run = _ProducerRun(arguments)
    ended: asyncio.CancelledError | None = None
    print_event("startup_complete")
    async with make_client(arguments.bootstrap_server or arguments.broker_list, values) as client:
        async with Producer(client, settings, now_ms) as producer:
            throttle = Throttle(arguments.throughput if arguments.throughput > 0 else -1)
            try:
                for number, key in zip(numbers, _keys(arguments.repeating_keys), strict=False):
                    await throttle.wait(number)
                    await run.send(producer, key, f"{prefix}{number}")
            except asyncio.CancelledError as signal:
                ended = signal
        print_event("shutdown_complete")
        run.print_summary()
    if ended is not None:
        raise ended
    return 0


def main(argv: list[str]) -> int:
    """Run the tool; returns its exit code."""
    arguments = make_parser().read(argv)
    return arguments if isinstance(arguments, int) else run_work(lambda: work(arguments))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
