"""kafka-e2e-latency: measure the time from sending a record to reading it (Kafka class `EndToEndLatency`)."""

from __future__ import annotations

import asyncio
import os
import random
import sys
from collections.abc import Sequence
from typing import NamedTuple

from client import admin
from client.consumer import Consumer
from client.kafka_client import KafkaClient
from client.producer import Producer
from client.settings import ConsumerSettings, ProducerSettings
from protocol.errors import ApiError
from protocol.topic_partition import TopicPartition
from tools.support.common import ToolError, make_client, now_ms, read_properties, run_work
from tools.support.options import UsageError
from tools.support.terminal import Progress

POLL_TIMEOUT_MS = 60_000
REPORT_EVERY = 1000
_LETTERS = bytes(range(ord("A"), ord("Z") + 1))


class Arguments(NamedTuple):
    """The parsed command line; `acks` is 1 or all."""

    servers: str
    topic: str
    messages: int
    acks: str
    size: int
    properties: dict[str, str]


def usage() -> str:
    """The usage line, with the command name that the user typed."""
    command = os.environ.get("ODRADEK_COMMAND", "kafka-e2e-latency.sh")
    return (
        f"USAGE: {command} broker_list topic num_messages producer_acks message_size_bytes [optional] properties_file\n"
        "Send records one after the other, read each, and print the latencies. --help shows this text."
    )


def parse_arguments(argv: Sequence[str]) -> Arguments:
    """Read the command line. Raises UsageError, ToolError, OSError and ConfigError."""
    if len(argv) not in {5, 6}:
        raise UsageError(usage())
    servers, topic, count, acks, size = argv[:5]
    if acks not in {"1", "all"}:
        raise ToolError("Latency testing requires synchronous acknowledgement. Please use 1 or all")
    for text in (count, size):
        if not text.isdigit():
            raise ToolError(f'For input string: "{text}"')
    properties = read_properties(argv[5]) if len(argv) == 6 else {}
    return Arguments(servers, topic, int(count), acks, int(size), properties)


async def work(argv: Sequence[str]) -> int:
    """Measure, and print a line every thousand records, then the summary."""
    arguments = parse_arguments(argv)
    values = {
        **arguments.properties,
        "acks": arguments.acks,
        "linger.ms": "0",
        "group.id": f"test-group-{now_ms()}",
        "enable.auto.commit": "false",
        "auto.offset.reset": "latest",
        "fetch.max.wait.ms": "0",
    }
    async with make_client(arguments.servers, values) as client:
        partitions = await prepare_topic(client, arguments.topic)
        async with (
            Consumer(client, ConsumerSettings.parse(values)) as consumer,
            Producer(client, ProducerSettings.parse(values), now_ms) as producer,
        ):
            consumer.assign(partitions)
            ends = await admin.list_offsets(client, dict.fromkeys(partitions, admin.LATEST_TIMESTAMP))
            for partition, end in ends.items():
                if isinstance(end, ApiError):
                    raise end
                consumer.seek(partition, end.offset)
            latencies_s = await measure(producer, consumer, arguments)
    print_results(latencies_s)
    return 0


async def prepare_topic(client: KafkaClient, topic: str) -> list[TopicPartition]:
    """The partitions of the topic, which is created if it does not exist."""
    known = await client.describe_topics([topic])
    if not known.topics[topic].partitions:
        print(f'Topic "{topic}" does not exist. Will create topic with 1 partition(s) and replication factor = 1')
        await admin.create_topic(client, topic, partitions=1, replication_factor=1)
        return [TopicPartition(topic, 0)]
    return [TopicPartition(topic, partition) for partition in known.topics[topic].partitions]


async def measure(producer: Producer, consumer: Consumer, arguments: Arguments) -> list[float]:
    """Seconds from each send to the record's arrival. Raises ToolError if none or another record arrives."""
    now_s = asyncio.get_running_loop().time
    letters = random.Random(0)  # noqa: S311  test data, not a secret
    latencies_s = []
    with Progress("Measuring", "records", arguments.messages) as progress:
        for number in range(arguments.messages):
            message = bytes(letters.choices(_LETTERS, k=arguments.size))
            began_s = now_s()
            await (await producer.send(arguments.topic, message))
            fetched = await consumer.poll(POLL_TIMEOUT_MS / 1000)
            latencies_s.append(now_s() - began_s)
            check_arrival([record.value for records in fetched.values() for record in records], message)
            if number % REPORT_EVERY == 0:
                print(f"{number}\t{latencies_s[-1] * 1000:.6g}", flush=True)
            progress.advance()
    return latencies_s


def check_arrival(values: Sequence[bytes | None], sent: bytes) -> None:
    """Raise ToolError unless exactly the sent record arrived."""
    if not values:
        raise ToolError(f"poll() timed out before finding a result (timeout:[{POLL_TIMEOUT_MS}ms])")
    if values[0] != sent:
        read = (values[0] or b"").decode("utf-8", "replace")
        raise ToolError(f"The message read [{read}] did not match the message sent [{sent.decode()}]")
    if len(values) > 1:
        raise ToolError(f"Only one result was expected during this test. We found [{len(values)}]")


def print_results(latencies_s: Sequence[float]) -> None:
    """Print the average, and percentiles in whole milliseconds."""
    ordered = sorted(int(latency_s * 1000) for latency_s in latencies_s) or [0]
    average_ms = 1000 * sum(latencies_s) / max(len(latencies_s), 1)
    p50, p99, p999 = (ordered[int(len(ordered) * part)] for part in (0.5, 0.99, 0.999))
    print(f"Avg latency: {average_ms:.4f} ms")
    print(f"Percentiles: 50th = {p50}, 99th = {p99}, 99.9th = {p999}")


def main(argv: list[str]) -> int:
    """Run the tool; returns its exit code."""
    return run_work(lambda: work(argv))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
