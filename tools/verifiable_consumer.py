"""kafka-verifiable-consumer: read as a group's member and report as JSON (Kafka class `VerifiableConsumer`)."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from client.consumer import Consumer
from client.errors import ClientError, FencedError
from client.groups import OffsetAndMetadata
from client.settings import ConsumerSettings
from protocol.errors import ApiError
from protocol.records.batch import Record
from protocol.topic_partition import TopicPartition
from tools.support.common import make_client, read_properties, reason, run_work
from tools.support.options import ArgumentParser, whole_number
from tools.support.performance import print_event

_POLL_S = 3600.0


def make_parser() -> ArgumentParser:
    """The parser of the tool's options."""
    parser = ArgumentParser("verifiable-consumer", "Read a topic as a group's member and report as JSON.")
    integer = whole_number("Integer")
    servers = parser.add_mutually_exclusive_group(required=True)
    servers.add_argument("--bootstrap-server", metavar="HOST1:PORT1[,...]", help="the brokers to connect to")
    servers.add_argument("--broker-list", metavar="HOST1:PORT1[,...]", help="deprecated name of --bootstrap-server")
    parser.add_argument("--topic", required=True, help="the topic to read")
    parser.add_argument("--group-protocol", type=str.upper, choices=("CLASSIC", "CONSUMER"), default="CLASSIC")
    parser.add_argument("--group-remote-assignor", help="of the protocol CONSUMER only")
    parser.add_argument("--group-id", required=True, help="the group to read as")
    parser.add_argument("--group-instance-id", help="the name of this member that outlives it")
    parser.add_argument("--max-messages", type=integer, default=-1, help="how many to read; -1: until killed")
    parser.add_argument("--session-timeout", type=integer, default=30_000, metavar="TIMEOUT_MS", help="ms")
    parser.add_argument("--verbose", action="store_true", help="report every record")
    parser.add_argument("--enable-autocommit", action="store_true", help="commit from time to time, not each poll")
    parser.add_argument("--reset-policy", default="earliest", help="earliest, latest or none")
    parser.add_argument(
        "--assignment-strategy", default="org.apache.kafka.clients.consumer.RangeAssignor", help="by Kafka's class name"
    )
    parser.add_argument("--consumer.config", dest="config", metavar="CONFIG_FILE", help="a file with properties")
    return parser


def _name(partition: TopicPartition) -> dict[str, Any]:
    return {"topic": partition.topic, "partition": partition.partition}


class _Reporter:
    """Prints the group's rebalances."""

    async def on_partitions_assigned(self, partitions: Iterable[TopicPartition]) -> None:
        """Print the assigned partitions."""
        print_event("partitions_assigned", partitions=list(map(_name, partitions)))

    async def on_partitions_revoked(self, partitions: Iterable[TopicPartition]) -> None:
        """Print the revoked partitions."""
        print_event("partitions_revoked", partitions=list(map(_name, partitions)))


class _ConsumerRun:
    """Counts records up to a limit; a negative limit means unlimited."""

    def __init__(self, limit: int, *, verbose: bool) -> None:
        self._left = limit
        self._verbose = verbose

    @property
    def is_finished(self) -> bool:
        """Whether the limit is reached."""
        return self._left == 0

    def report(self, fetched: Mapping[TopicPartition, list[Record]]) -> dict[TopicPartition, OffsetAndMetadata]:
        """Print the records read; returns the offsets after them."""
        summaries, offsets = [], {}
        for partition, polled in fetched.items():
            records = polled if self._left < 0 else polled[: self._left]
            if not records:
                continue
            self._left -= len(records) if self._left > 0 else 0
            offsets[partition] = OffsetAndMetadata(records[-1].offset + 1)
            summaries.append(
                {
                    **_name(partition),
                    "count": len(records),
                    "minOffset": records[0].offset,
                    "maxOffset": records[-1].offset,
                }
            )
            for record in records if self._verbose else ():
                print_event(
                    "record_data",
                    key=_text(record.key),
                    value=_text(record.value),
                    **_name(partition),
                    offset=record.offset,
                )
        print_event("records_consumed", count=sum(map(len, fetched.values())), partitions=summaries)
        return offsets


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode("utf-8", "replace")


async def _commit(consumer: Consumer, offsets: dict[TopicPartition, OffsetAndMetadata]) -> None:
    """Commit and print the result. Raises FencedError, which is fatal."""
    shown = [{**_name(partition), "offset": committed.offset} for partition, committed in offsets.items()]
    try:
        await consumer.commit(offsets)
    except FencedError:
        raise
    except (ApiError, ClientError) as error:
        print_event("offsets_committed", offsets=shown, success=False, error=reason(error))
    else:
        print_event("offsets_committed", offsets=shown, success=True)


async def work(arguments: argparse.Namespace) -> int:
    """Read up to the limit, or until cancelled; leaves the group in either case.

    Raises CancelledError after the last event when cancelled.
    """
    values = {
        "client.id": f"consumer-{arguments.group_id}-1",
        **(read_properties(arguments.config) if arguments.config else {}),
        "group.protocol": arguments.group_protocol,
        "group.id": arguments.group_id,
        "enable.auto.commit": str(arguments.enable_autocommit),
        "auto.offset.reset": arguments.reset_policy,
        "session.timeout.ms": str(arguments.session_timeout),
        "partition.assignment.strategy": arguments.assignment_strategy,
    }
    if arguments.group_instance_id:
        values["group.instance.id"] = arguments.group_instance_id
    settings = ConsumerSettings.parse(values)
    run = _ConsumerRun(arguments.max_messages, verbose=arguments.verbose)
    ended: asyncio.CancelledError | None = None
    async with make_client(arguments.bootstrap_server or arguments.broker_list, values) as client:
        print_event("startup_complete")
        async with Consumer(client, settings) as consumer:
            consumer.subscribe([arguments.topic], _Reporter())
            try:
                while not run.is_finished:
                    offsets = run.report(await consumer.poll(_POLL_S))
                    if not arguments.enable_autocommit:
                        await _commit(consumer, offsets)
            except asyncio.CancelledError as signal:
                ended = signal
        print_event("shutdown_complete")
    if ended is not None:
        raise ended
    return 0


def main(argv: list[str]) -> int:
    """Run the tool; returns its exit code."""
    arguments = make_parser().read(argv)
    return arguments if isinstance(arguments, int) else run_work(lambda: work(arguments))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
