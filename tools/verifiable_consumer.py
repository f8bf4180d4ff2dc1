"""kafka-verifiable-consumer: reads a topic as member of a group, and tells all that happens (`VerifiableConsumer`).

Offsets are committed after each poll, of exactly the records that were told before. Ended by SIGTERM, it leaves its
group and tells that.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Mapping

from client.consumer import Consumer
from client.errors import ClientError, FencedError
from client.groups import OffsetAndMetadata
from client.settings import ConsumerSettings
from protocol.errors import ApiError
from protocol.records import Record
from protocol.topic_partition import TopicPartition
from tools.arguments import ArgumentParser, add_servers, int32, run_parsed
from tools.common import make_client, read_properties, reason
from tools.json_events import print_event

_POLL_S = 1e9
"""A poll waits as long as it takes; what happens to the group is told meanwhile."""


def make_parser() -> ArgumentParser:
    """The options, in Kafka's order."""
    parser = ArgumentParser(
        "verifiable-consumer", description="Read a topic as member of a group and tell, as JSON, all that happens."
    )
    add = parser.add_argument
    add("--topic", required=True, help="the topic to read")
    add("--group-protocol", default="classic", help="classic; consumer is not supported yet (default: classic)")
    add("--group-remote-assignor", help="only used by the group protocol consumer")
    add("--group-id", required=True, help="the group to be a member of")
    add("--group-instance-id", help="the name of this member, which makes it a static one")
    add("--max-messages", type=int32, default=-1, help="end after so many records; -1 for no end (default: -1)")
    add(
        "--session-timeout",
        type=int32,
        default=30_000,
        metavar="TIMEOUT_MS",
        help="how long the group may miss this member (default: 30000)",
    )
    add("--verbose", action="store_true", help="tell of each record")
    add("--enable-autocommit", action="store_true", help="commit from time to time instead of after each poll")
    add(
        "--reset-policy",
        default="earliest",
        metavar="RESETPOLICY",
        help="where to begin in a partition without a committed offset: earliest, latest or none (default: earliest)",
    )
    add(
        "--assignment-strategy",
        default="org.apache.kafka.clients.consumer.RangeAssignor",
        metavar="ASSIGNMENTSTRATEGY",
        help="the assignor, by its class name in Kafka (default: org.apache.kafka.clients.consumer.RangeAssignor)",
    )
    add("--consumer.config", dest="config", metavar="CONFIG_FILE", help="a file with properties for the consumer")
    add_servers(parser)
    return parser


class _Listener:
    """Tells what the group gives and takes."""

    async def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
        """See `RebalanceListener`."""
        print_event("partitions_assigned", partitions=[each._asdict() for each in partitions])

    async def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
        """See `RebalanceListener`."""
        print_event("partitions_revoked", partitions=[each._asdict() for each in partitions])


class _Run:
    """Reads, tells and commits."""

    def __init__(self, arguments: Namespace, consumer: Consumer) -> None:
        self._arguments = arguments
        self._consumer = consumer
        self._remaining: int | None = None if arguments.max_messages < 0 else arguments.max_messages

    async def read_all(self) -> None:
        """Read to the end, or until cancelled."""
        while self._remaining is None or self._remaining > 0:
            offsets = self._tell_records(await self._consumer.poll(_POLL_S))
            if offsets and not self._arguments.enable_autocommit:
                await self._commit(offsets)

    def _tell_records(self, polled: Mapping[TopicPartition, list[Record]]) -> dict[TopicPartition, OffsetAndMetadata]:
        """Tell what a poll brought, no more than is still wanted; how far that was."""
        offsets = {}
        summaries = []
        total = 0
        for partition, records in polled.items():
            wanted = records if self._remaining is None else records[: self._remaining]
            if not wanted:
                break
            if self._remaining is not None:
                self._remaining -= len(wanted)
            if self._arguments.verbose:
                for record in wanted:
                    _tell_record(partition, record)
            total += len(wanted)
            offsets[partition] = OffsetAndMetadata(wanted[-1].offset + 1)
            summaries.append(
                {
                    **partition._asdict(),
                    "count": len(wanted),
                    "minOffset": wanted[0].offset,
                    "maxOffset": wanted[-1].offset,
                }
            )
        if total:
            print_event("records_consumed", count=total, partitions=summaries)
        return offsets

    async def _commit(self, offsets: dict[TopicPartition, OffsetAndMetadata]) -> None:
        """Commit, and tell how that went. Raises FencedError."""
        told = [{**partition._asdict(), "offset": each.offset} for partition, each in offsets.items()]
        try:
            await self._consumer.commit(offsets)
        except FencedError:
            raise
        except (ApiError, ClientError) as error:
            print_event("offsets_committed", offsets=told, error=reason(error), success=False)
        else:
            print_event("offsets_committed", offsets=told, success=True)


def _tell_record(partition: TopicPartition, record: Record) -> None:
    print_event(
        "record_data",
        key=None if record.key is None else record.key.decode(errors="replace"),
        value=None if record.value is None else record.value.decode(errors="replace"),
        topic=partition.topic,
        partition=partition.partition,
        offset=record.offset,
    )


def consumer_properties(arguments: Namespace) -> dict[str, str]:
    """What the consumer is told; options go before the file. Raises OSError, ConfigError."""
    values = {} if arguments.config is None else read_properties(arguments.config)
    values |= {
        "bootstrap.servers": arguments.bootstrap_server,
        "group.protocol": arguments.group_protocol,
        "group.id": arguments.group_id,
        "enable.auto.commit": str(arguments.enable_autocommit).lower(),
        "auto.offset.reset": arguments.reset_policy,
        "session.timeout.ms": str(arguments.session_timeout),
        "partition.assignment.strategy": arguments.assignment_strategy,
    }
    if arguments.group_instance_id is not None:
        values["group.instance.id"] = arguments.group_instance_id
    return values


async def work(arguments: Namespace) -> int:
    """Read until the end; leave the group."""
    values = consumer_properties(arguments)
    settings = ConsumerSettings.parse(values)
    async with make_client(None, values, client_id=f"consumer-{arguments.group_id}-1") as client:
        consumer = Consumer(client, settings)
        print_event("startup_complete")
        listener = _Listener()
        try:
            consumer.subscribe([arguments.topic], listener)
            await _Run(arguments, consumer).read_all()
        finally:
            assignment = consumer.assignment
            await consumer.close()
            if assignment:
                await listener.on_partitions_revoked(assignment)
            print_event("shutdown_complete")
    return 0


def main(argv: list[str]) -> int:
    """Run the tool; returns its exit code."""
    return run_parsed(argv, make_parser(), work)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
