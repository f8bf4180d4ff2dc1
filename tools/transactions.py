"""kafka-transactions: list and describe transactions, and abort hanging ones (Kafka class `TransactionsCommand`).

Rows are sorted; Kafka's order is that of its hash tables.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Awaitable, Callable, Sequence

from client.errors import ClientError
from client.kafka_client import KafkaClient
from client.transactions.transaction_admin import (
    OpenTransaction,
    ProducerState,
    abort_transaction,
    describe_producers,
    describe_transaction,
    list_transactions,
)
from protocol.errors import ApiError, ErrorCode
from protocol.topic_partition import TopicPartition
from tools.support.common import ToolError, make_client, now_ms, read_properties, reason, run_work
from tools.support.options import ArgumentParser, whole_number

LIST_HEADERS = ("TransactionalId", "Coordinator", "ProducerId", "TransactionState")
DESCRIBE_HEADERS = (
    "CoordinatorId",
    "TransactionalId",
    "ProducerId",
    "ProducerEpoch",
    "TransactionState",
    "TransactionTimeoutMs",
    "CurrentTransactionStartTimeMs",
    "TransactionDurationMs",
    "TopicPartitions",
)
PRODUCER_HEADERS = (
    "ProducerId",
    "ProducerEpoch",
    "LatestCoordinatorEpoch",
    "LastSequence",
    "LastTimestamp",
    "CurrentTransactionStartOffset",
)
HANGING_HEADERS = (
    "Topic",
    "Partition",
    "ProducerId",
    "ProducerEpoch",
    "CoordinatorEpoch",
    "StartOffset",
    "LastTimestamp",
    "Duration(min)",
)
_MINUTE_MS = 60_000
_PARTITIONS_AT_ONCE = 500
"""The number of partitions in one request."""
_FAILURES = (ApiError, ClientError)


def make_parser() -> ArgumentParser:
    """The parser of the tool's options and commands."""
    parser = ArgumentParser(
        "kafka-transactions.sh",
        "Show transactions and their producers. Find transactions that hang, and abort them.",
        ("-v", "--version"),
    )
    integer, long = whole_number("Integer"), whole_number("Long")
    parser.add_argument("--command-config", metavar="FILE", help="a file with properties for the client")
    parser.add_argument("--bootstrap-server", metavar="host:port", required=True, help="the brokers to connect to")
    commands = parser.add_commands()
    listing = commands.add_parser("list", help="list transactional ids")
    listing.add_argument(
        "--duration-filter", type=long, default=-1, help="only transactions that are open for longer, in ms; -1: all"
    )
    describing = commands.add_parser("describe", help="describe a transactional id")
    describing.add_argument("--transactional-id", required=True, help="the transactional id")
    producers = commands.add_parser("describe-producers", help="describe the producers that write to a partition")
    producers.add_argument("--broker-id", type=integer, help="the broker whose replica is asked (default: the leader)")
    aborting = commands.add_parser("abort", help="abort a transaction in a partition")
    for command in (producers, aborting):
        command.add_argument("--topic", required=True, help="the topic")
        command.add_argument("--partition", type=integer, required=True, help="the partition of it")
    aborting.add_argument("--start-offset", type=long, help="where the transaction begins in the partition")
    older = aborting.add_argument_group("brokers older than 3.0", "these take the place of --start-offset")
    older.add_argument("--producer-id", type=long, help="the id of the producer")
    older.add_argument("--producer-epoch", type=whole_number("Short"), help="the epoch of the producer")
    older.add_argument("--coordinator-epoch", type=integer, help="the epoch of the coordinator")
    hanging = commands.add_parser("find-hanging", help="find transactions that nobody will end")
    hanging.add_argument("--broker-id", type=integer, help="search the replicas of this broker")
    hanging.add_argument(
        "--max-transaction-timeout", type=integer, default=15, help="minutes that any transaction may last (default 15)"
    )
    hanging.add_argument("--topic", help="search this topic")
    hanging.add_argument("--partition", type=integer, help="search this partition of --topic")
    return parser


def failure(what: str, error: BaseException) -> ToolError:
    """The error of a command, with Kafka's wording."""
    return ToolError(f"{what}: {reason(error)}. Enable debug logging for additional detail.")


def print_table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print columns as wide as their contents, each followed by a tab."""
    texts = [list(headers), *([str(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    for row in texts:
        print("".join(f"{cell:{width}}\t" for cell, width in zip(row, widths, strict=True)))


# -- commands ----------------------------------------------------------------------------------------------------------


async def list_ids(client: KafkaClient, arguments: argparse.Namespace) -> None:
    """Print the transactional ids of all coordinators."""
    try:
        found = await list_transactions(client, duration_ms=arguments.duration_filter)
    except _FAILURES as error:
        raise failure("Failed to list transactions", error) from error
    print_table(
        LIST_HEADERS,
        [
            (each.transactional_id, broker_id, each.producer_id, each.transaction_state)
            for broker_id, listed in sorted(found.items())
            for each in sorted(listed, key=lambda each: each.transactional_id)
        ],
    )


async def describe(client: KafkaClient, arguments: argparse.Namespace) -> None:
    """Print one transactional id."""
    transactional_id = arguments.transactional_id
    try:
        found = await describe_transaction(client, transactional_id)
    except _FAILURES as error:
        what = f"Failed to describe transaction state of transactional-id `{transactional_id}`"
        raise failure(what, error) from error
    is_open = found.start_ms >= 0
    row = (
        found.coordinator,
        transactional_id,
        found.producer_id,
        found.producer_epoch,
        found.state,
        found.timeout_ms,
        found.start_ms if is_open else None,
        now_ms() - found.start_ms if is_open else None,
        ",".join(map(str, sorted(found.partitions))),
    )
    print_table(DESCRIBE_HEADERS, [row])


async def producers_of(
    client: KafkaClient, partition: TopicPartition, broker_id: int | None = None
) -> list[ProducerState]:
    """The producers of one partition, by id. Raises ApiError and ClientError."""
    found = (await describe_producers(client, [partition], broker_id))[partition]
    if isinstance(found, ApiError):
        raise found
    return sorted(found, key=lambda each: each.producer_id)


async def describe_writers(client: KafkaClient, arguments: argparse.Namespace) -> None:
    """Print the producers of one partition."""
    partition = TopicPartition(arguments.topic, arguments.partition)
    broker_id: int | None = arguments.broker_id
    try:
        found = await producers_of(client, partition, broker_id)
    except _FAILURES as error:
        where = "leader" if broker_id is None else f"broker {broker_id}"
        raise failure(f"Failed to describe producers for partition {partition} on {where}", error) from error
    print_table(
        PRODUCER_HEADERS,
        [
            (
                each.producer_id,
                each.producer_epoch,
                max(each.coordinator_epoch, -1),
                each.last_sequence,
                each.last_timestamp,
                each.current_txn_start_offset if each.current_txn_start_offset >= 0 else None,
            )
            for each in found
        ],
    )


async def abort(client: KafkaClient, arguments: argparse.Namespace) -> None:
    """Abort a transaction in one partition."""
    transaction = await open_transaction(client, arguments)
    try:
        await abort_transaction(client, transaction)
    except _FAILURES as error:
        raise failure(f"Failed to abort transaction {transaction}", error) from error


async def open_transaction(client: KafkaClient, arguments: argparse.Namespace) -> OpenTransaction:
    """The transaction that the options name. An unknown coordinator epoch is 0, the lowest."""
    partition = TopicPartition(arguments.topic, arguments.partition)
    if arguments.start_offset is None:
        if arguments.producer_id is None:
            raise ToolError(
                "The transaction to abort must be identified either with --start-offset (for brokers on 3.0 or above) "
                "or with --producer-id, --producer-epoch, and --coordinator-epoch (for older brokers)"
            )
        for name in ("producer_epoch", "coordinator_epoch"):
            if getattr(arguments, name) is None:
                raise ToolError(f"Missing required argument --{name.replace('_', '-')}")
        return OpenTransaction(
            partition, arguments.producer_id, arguments.producer_epoch, max(arguments.coordinator_epoch, 0)
        )
    try:
        found = await producers_of(client, partition)
    except _FAILURES as error:
        raise failure(f"Failed to validate producer state for partition {partition}", error) from error
    for each in found:
        if each.current_txn_start_offset == arguments.start_offset >= 0:
            return OpenTransaction(partition, each.producer_id, each.producer_epoch, max(each.coordinator_epoch, 0))
    raise ToolError(
        f"Could not find any open transactions starting at offset {arguments.start_offset} on partition {partition}"
    )


# -- hanging transactions ----------------------------------------------------------------------------------------------

Open = tuple[TopicPartition, ProducerState]


async def find_hanging(client: KafkaClient, arguments: argparse.Namespace) -> None:
    """Print transactions that are open in a partition, but that no coordinator will end there."""
    if arguments.topic is None and arguments.broker_id is None:
        raise ToolError(
            "The `find-hanging` command requires either --topic or --broker-id to limit the scope of the search"
        )
    if arguments.partition is not None and arguments.topic is None:
        raise ToolError("The --partition argument requires --topic to be provided")
    partitions = await partitions_to_search(client, arguments)
    candidates = await open_for_long(
        client, partitions, arguments.broker_id, arguments.max_transaction_timeout * _MINUTE_MS
    )
    hanging = await without_a_coordinator(client, candidates) if candidates else []
    print_table(
        HANGING_HEADERS,
        [
            (
                *partition,
                producer.producer_id,
                producer.producer_epoch,
                max(producer.coordinator_epoch, -1),
                producer.current_txn_start_offset,
                producer.last_timestamp,
                (now_ms() - producer.last_timestamp) // _MINUTE_MS,
            )
            for partition, producer in hanging
        ],
    )


async def partitions_to_search(client: KafkaClient, arguments: argparse.Namespace) -> list[TopicPartition]:
    """The partitions that the options name, sorted; with a broker, only those with a replica on it."""
    if arguments.partition is not None:
        return [TopicPartition(arguments.topic, arguments.partition)]
    try:
        metadata = await client.describe_topics(None if arguments.topic is None else [arguments.topic])
    except _FAILURES as error:
        raise failure("Failed to list topics", error) from error
    topics = metadata.topics.values()
    for topic in topics:
        if topic.error_code != ErrorCode.NONE:
            raise failure(f"Failed to describe {len(topics)} topics", ApiError(topic.error_code))
    return sorted(
        TopicPartition(topic.name, number)
        for topic in topics
        for number, partition in topic.partitions.items()
        if arguments.broker_id is None or arguments.broker_id in partition.replicas
    )


async def open_for_long(
    client: KafkaClient, partitions: Sequence[TopicPartition], broker_id: int | None, limit_ms: int
) -> list[Open]:
    """Open transactions whose last record is older than `limit_ms`."""
    candidates: list[Open] = []
    for start in range(0, len(partitions), _PARTITIONS_AT_ONCE):
        asked = partitions[start : start + _PARTITIONS_AT_ONCE]
        where = "Optional.empty" if broker_id is None else f"Optional[{broker_id}]"
        what = f"Failed to describe producers for {len(asked)} partitions on broker {where}"
        try:
            found = await describe_producers(client, asked, broker_id)
        except _FAILURES as error:
            raise failure(what, error) from error
        now = now_ms()
        for partition, producers in sorted(found.items(), key=lambda item: item[0]):
            if isinstance(producers, ApiError):
                raise failure(what, producers)
            candidates += [
                (partition, each)
                for each in producers
                if each.current_txn_start_offset >= 0 and now - each.last_timestamp > limit_ms
            ]
    return candidates


async def without_a_coordinator(client: KafkaClient, candidates: Sequence[Open]) -> list[Open]:
    """Hanging transactions: their producer belongs to no transactional id, or its transaction lacks the partition."""
    producer_ids = sorted({producer.producer_id for _, producer in candidates})
    try:
        listed = await list_transactions(client, producer_ids=producer_ids)
    except _FAILURES as error:
        raise failure(f"Failed to list transactions for {len(producer_ids)} producers", error) from error
    ids = {each.producer_id: each.transactional_id for found in listed.values() for each in found}
    ending: dict[str, list[TopicPartition]] = {}
    for transactional_id in ids.values():
        try:
            ending[transactional_id] = (await describe_transaction(client, transactional_id)).partitions
        except _FAILURES as error:
            if not (isinstance(error, ApiError) and error.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND):
                raise failure(f"Failed to describe {len(ids)} transactions", error) from error
    return [
        (partition, producer)
        for partition, producer in candidates
        if partition not in ending.get(ids.get(producer.producer_id, ""), ())
    ]


Command = Callable[[KafkaClient, argparse.Namespace], Awaitable[None]]
COMMANDS: dict[str, Command] = {
    "list": list_ids,
    "describe": describe,
    "describe-producers": describe_writers,
    "abort": abort,
    "find-hanging": find_hanging,
}


async def work(arguments: argparse.Namespace) -> int:
    """Run one command."""
    path = arguments.command_config
    try:
        properties = read_properties(path) if path is not None else {}
    except OSError as error:
        raise failure("Failed to load admin client properties", error) from error
    async with make_client(arguments.bootstrap_server, properties) as client:
        await COMMANDS[arguments.command](client, arguments)
    return 0


def main(argv: list[str]) -> int:
    """Run the tool; returns its exit code."""
    arguments = make_parser().read(argv, needs_arguments=True)
    return arguments if isinstance(arguments, int) else run_work(lambda: work(arguments))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
