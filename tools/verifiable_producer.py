"""kafka-verifiable-producer: sends increasing numbers, and tells of each whether it arrived (`VerifiableProducer`).

Ended by SIGTERM, it still delivers what it has sent and tells the sums, so that every record is accounted for.
"""

from __future__ import annotations

import asyncio
import sys
import time
from argparse import Namespace
from functools import partial

from client.batches import RecordMetadata
from client.errors import ClientError
from client.producer import Producer
from client.settings import ProducerSettings
from protocol.errors import ApiError
from tools.arguments import ArgumentParser, add_servers, int32, int64, run_parsed
from tools.common import make_client, now_ms, read_properties, reason
from tools.error_texts import exception_name
from tools.json_events import print_event
from tools.throttle import Throttle


def make_parser() -> ArgumentParser:
    """The options, in Kafka's order."""
    parser = ArgumentParser(
        "verifiable-producer", description="Send increasing numbers and tell, as JSON, what becomes of each."
    )
    add = parser.add_argument
    add("--topic", required=True, help="the topic to write to")
    add("--max-messages", type=int32, default=-1, help="how many records to send; -1 for no end (default: -1)")
    add("--throughput", type=int64, default=-1, help="records per second to stay below; -1 for no limit (default: -1)")
    add("--acks", type=int32, choices=(0, 1, -1), default=-1, help="acknowledgements to wait for (default: -1)")
    add("--producer.config", dest="config", metavar="CONFIG_FILE", help="a file with properties for the producer")
    add(
        "--message-create-time",
        type=int64,
        default=-1,
        metavar="CREATETIME",
        help="timestamp (ms) at the start, from where time goes on; -1 for the real one (default: -1)",
    )
    add("--value-prefix", type=int32, help="put this number and a dot before each value")
    add("--repeating-keys", type=int32, help="give records keys from 0 up to this number, exclusive, in turns")
    add_servers(parser)
    return parser


class _Run:
    """What was sent and acknowledged; tells about each record."""

    def __init__(self, arguments: Namespace) -> None:
        self._arguments = arguments
        self._start_ms = now_ms()
        self._start_s = time.monotonic()
        self.sent = 0
        self.acknowledged = 0

    async def send_all(self, producer: Producer) -> None:
        """Send the numbers, to the last or until cancelled."""
        arguments = self._arguments
        throttle = Throttle(arguments.throughput)
        while arguments.max_messages < 0 or self.sent < arguments.max_messages:
            await throttle.take(1)
            value = str(self.sent) if arguments.value_prefix is None else f"{arguments.value_prefix}.{self.sent}"
            key = str(self.sent % arguments.repeating_keys) if arguments.repeating_keys else None
            self.sent += 1
            encoded_key = None if key is None else key.encode()
            try:
                delivery = await producer.send(
                    arguments.topic, value.encode(), encoded_key, timestamp=self._timestamp()
                )
            except (ApiError, ClientError) as error:
                self._tell_failure(key, value, error)
                continue
            delivery.add_done_callback(partial(self._tell_outcome, key, value))

    def _timestamp(self) -> int | None:
        create_time: int = self._arguments.message_create_time
        return create_time + now_ms() - self._start_ms if create_time >= 0 else None

    def _tell_outcome(self, key: str | None, value: str, delivery: asyncio.Future[RecordMetadata]) -> None:
        error = ClientError("Producer is closed.") if delivery.cancelled() else delivery.exception()
        if error is not None:
            self._tell_failure(key, value, error)
            return
        self.acknowledged += 1
        found = delivery.result()
        print_event(
            "producer_send_success",
            key=key,
            value=value,
            offset=found.offset,
            topic=found.topic_partition.topic,
            partition=found.topic_partition.partition,
        )

    def _tell_failure(self, key: str | None, value: str, error: BaseException) -> None:
        print_event(
            "producer_send_error",
            topic=self._arguments.topic,
            key=key,
            value=value,
            exception=f"class {exception_name(error)}",
            message=reason(error),
        )

    def tell_end(self) -> None:
        """The sums."""
        elapsed_s = time.monotonic() - self._start_s
        print_event("shutdown_complete")
        print_event(
            "tool_data",
            sent=self.sent,
            acked=self.acknowledged,
            target_throughput=self._arguments.throughput,
            avg_throughput=self.acknowledged / elapsed_s,
        )


def producer_properties(arguments: Namespace) -> dict[str, str]:
    """What the producer is told; the file goes before options, as with Kafka. Raises OSError, ConfigError."""
    values = {
        "bootstrap.servers": arguments.bootstrap_server,
        "acks": str(arguments.acks),
        # Sending again would hide what this tool is there to show.
        "retries": "0",
    }
    return {**values, **({} if arguments.config is None else read_properties(arguments.config))}


async def work(arguments: Namespace) -> int:
    """Send until the end, then tell the sums."""
    values = producer_properties(arguments)
    settings = ProducerSettings.parse(values)
    async with make_client(None, values, client_id="producer-1") as client:
        run = _Run(arguments)
        print_event("startup_complete")
        try:
            async with Producer(client, settings, now_ms) as producer:
                await run.send_all(producer)
        finally:
            run.tell_end()
    return 0


def main(argv: list[str]) -> int:
    """Run the tool; returns its exit code."""
    return run_parsed(argv, make_parser(), work)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
