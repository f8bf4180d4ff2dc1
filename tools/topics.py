"""kafka-topics: create, list, describe, grow and delete topics (Kafka class `TopicCommand`).

Topics are sorted by name; Kafka's order is that of a Java hash map.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Sequence

from client import admin
from client.kafka_client import KafkaClient
from client.metadata import PartitionMetadata, TopicMetadata
from protocol.config_resources import ConfigResourceType, ConfigSource
from protocol.errors import ApiError, ErrorCode
from protocol.topic_partition import is_internal
from protocol.uuids import ZERO_UUID, Uuid
from tools.support.common import (
    BOOTSTRAP_SERVER,
    COMMAND_CONFIG,
    ToolError,
    TopicFilter,
    admin_client,
    reason,
    run_tool,
)
from tools.support.error_texts import exception_text
from tools.support.options import Option, OptionParser, Options, UsageError

logger = logging.getLogger("org.apache.kafka.tools.TopicCommand")

ACTIONS = ("create", "list", "alter", "describe", "delete")
REPORTS = (
    "under-replicated-partitions",
    "unavailable-partitions",
    "under-min-isr-partitions",
    "at-min-isr-partitions",
    "topics-with-overrides",
)

PARSER = OptionParser(
    "Create, list, describe, grow and delete topics.",
    [
        BOOTSTRAP_SERVER,
        COMMAND_CONFIG,
        Option("create", "Create a topic."),
        Option("list", "List the topics."),
        Option("alter", "Give a topic more partitions."),
        Option("describe", "Show topics with their partitions."),
        Option("delete", "Delete topics."),
        Option("topic", "The topic; a regular expression for all actions but --create.", "topic"),
        Option("topic-id", "Describe the topic with this id.", "topic-id"),
        Option("partitions", "How many partitions the topic shall have.", "# of partitions", "Integer"),
        Option("replication-factor", "How many copies of each partition to keep.", "replication factor", "Integer"),
        Option(
            "replica-assignment",
            "The brokers of each partition: partitions are separated by commas, replicas by colons.",
            "broker:broker,broker:broker,...",
        ),
        Option("config", "With --create: a configuration of the topic; may be repeated.", "name=value"),
        Option("delete-config", "Not supported; use kafka-configs.", "name"),
        Option("if-exists", "With --alter, --delete, --describe: do nothing when the topic does not exist."),
        Option("if-not-exists", "With --create: do nothing when the topic exists."),
        Option("exclude-internal", "With --list, --describe: leave the brokers' own topics out."),
        Option("under-replicated-partitions", "Describe partitions that have replicas out of sync."),
        Option("unavailable-partitions", "Describe partitions without a leader."),
        Option("under-min-isr-partitions", "Describe partitions with fewer in-sync replicas than required."),
        Option("at-min-isr-partitions", "Describe partitions with just as many in-sync replicas as required."),
        Option("topics-with-overrides", "Describe topics that have a configuration of their own."),
        Option(
            "partition-size-limit-per-response", "Accepted for compatibility; without effect.", "partitions", "Integer"
        ),
    ],
)


def check(options: Options) -> None:
    """Raise UsageError or ToolError for invalid combinations of options."""
    if sum(map(options.has, ACTIONS)) != 1:
        raise UsageError("Command must include exactly one action: --list, --describe, --create, --alter or --delete")
    if not options.has("bootstrap-server"):
        raise ToolError("--bootstrap-server must be specified")
    if options.has("describe") and options.has("if-exists") and not (options.has("topic") or options.has("topic-id")):
        raise UsageError("--topic or --topic-id is required to describe a topic")
    if not options.has("list") and not options.has("describe"):
        options.require("topic")
    if options.has("alter"):
        if options.has("config"):
            raise UsageError(
                'Option combination "[[bootstrap-server], [config]]" can\'t be used with option "[alter]" '
                "(the kafka-configs CLI supports altering topic configs with a --bootstrap-server option)"
            )
        options.require("partitions")
    _only_with(options, "config", "create")
    _only_with(options, "delete-config", "alter")
    _only_with(options, "partitions", "create", "alter")
    _only_with(options, "replication-factor", "create")
    _only_with(options, "replica-assignment", "create", "alter")
    if options.has("create"):
        options.forbid("replica-assignment", "partitions", "replication-factor")
    for report in REPORTS:
        options.forbid(report, *(other for other in REPORTS if other != report))
        _only_with(options, report, "describe")
    _only_with(options, "if-exists", "alter", "delete", "describe")
    _only_with(options, "if-not-exists", "create")
    _only_with(options, "exclude-internal", "list", "describe")


def _only_with(options: Options, used: str, *actions: str) -> None:
    options.forbid(used, *(action for action in ACTIONS if action not in actions))


async def work(options: Options) -> int:
    """Run the requested action."""
    async with admin_client(options) as client:
        if options.has("create"):
            await create(client, options)
        elif options.has("alter"):
            await alter(client, options)
        elif options.has("list"):
            for name in await matching_topics(client, options):
                print(name)
        elif options.has("describe"):
            await describe(client, options)
        else:
            await delete(client, options)
    return 0


async def matching_topics(client: KafkaClient, options: Options) -> list[str]:
    """Names of the topics that --topic and --exclude-internal select, sorted."""
    pattern = options.text("topic")
    chosen = TopicFilter(pattern if pattern is not None else ".*", exclude_internal=options.has("exclude-internal"))
    metadata = await admin.list_topics(client)
    return sorted(name for name, topic in metadata.topics.items() if chosen.allows(name, topic.is_internal))


async def existing_topics(client: KafkaClient, options: Options) -> list[str]:
    """`matching_topics`. Raises ToolError if --topic matches none, unless --if-exists is given."""
    names = await matching_topics(client, options)
    if not names and options.has("topic") and not options.has("if-exists"):
        raise ToolError(f"Topic 'Optional[{options.text('topic')}]' does not exist as expected")
    return names


# -- create, alter, delete ---------------------------------------------------------------------------------------------


async def create(client: KafkaClient, options: Options) -> None:
    """Create the topic, and print that."""
    name = options.required_text("topic")
    if "." in name or "_" in name:
        print(
            "WARNING: Due to limitations in metric names, topics with a period ('.') or underscore ('_') could "
            "collide. To avoid issues it is best to use either, but not both."
        )
    partitions = options.number("partitions")
    if partitions is not None and partitions < 1:
        raise ToolError("The partitions must be greater than 0")
    replication_factor = options.number("replication-factor")
    if replication_factor is not None and not 1 <= replication_factor <= 32767:
        raise ToolError("The replication factor must be between 1 and 32767 inclusive")
    assignment = options.text("replica-assignment")
    configs = parse_topic_configs(options.texts("config"))
    try:
        await admin.create_topic(
            client,
            name,
            partitions=-1 if partitions is None else partitions,
            replication_factor=-1 if replication_factor is None else replication_factor,
            assignment=dict(enumerate(parse_assignment(assignment))) if assignment is not None else None,
            configs=configs,
        )
    except ApiError as error:
        if error.error_code == ErrorCode.TOPIC_ALREADY_EXISTS and options.has("if-not-exists"):
            return
        raise
    print(f"Created topic {name}.")


def parse_topic_configs(arguments: Sequence[str]) -> dict[str, str]:
    """The `name=value` texts of --config. Raises ToolError."""
    pairs = [re.split(r"\s*=\s*", argument) for argument in arguments]
    if any(len(pair) != 2 or not pair[1] for pair in pairs):
        raise ToolError(
            'requirement failed: Invalid topic config: all configs to be added must be in the format "key=val".'
        )
    return {name.strip(): value.strip() for name, value in pairs}


def parse_assignment(text: str) -> list[list[int]]:
    """The replicas of each partition in `0:1,1:0`. Raises ToolError for assignments that no broker would accept."""
    partitions: list[list[int]] = []
    for part in text.split(","):
        try:
            replicas = [int(each.strip()) for each in part.strip().split(":")]
        except ValueError:
            raise ToolError(f'For input string: "{part.strip()}"') from None
        twice = [each for each in dict.fromkeys(replicas) if replicas.count(each) > 1]
        if twice:
            raise ToolError(f"Partition replica lists may not contain duplicate entries: {', '.join(map(str, twice))}")
        if partitions and len(replicas) != len(partitions[0]):
            raise ToolError(f"Partition {len(partitions)} has different replication factor: {replicas}")
        partitions.append(replicas)
    return partitions


async def alter(client: KafkaClient, options: Options) -> None:
    """Increase the partition counts of the topics."""
    names = await existing_topics(client, options)
    count = options.required_number("partitions")
    if count < 1:
        raise ToolError("The partitions must be greater than 0")
    assignment = options.text("replica-assignment")
    metadata = await client.describe_topics(names) if names else None
    for name in names:
        placed = None
        if assignment is not None and metadata is not None:
            placed = parse_assignment(assignment)[len(metadata.topics[name].partitions) :]
        await admin.create_partitions(client, name, count, placed)


async def delete(client: KafkaClient, options: Options) -> None:
    """Delete the topics."""
    for name in await existing_topics(client, options):
        await admin.delete_topic(client, name)


# -- describe ----------------------------------------------------------------------------------------------------------


async def describe(client: KafkaClient, options: Options) -> None:
    """Print the topics and their partitions, or only the partitions for a report."""
    names = await _topics_to_describe(client, options)
    if not names:
        return
    metadata = await client.describe_topics(names)
    wanted = [(ConfigResourceType.TOPIC, name) for name in names]
    configs = await admin.describe_configs(client, wanted)
    report = next((name for name in REPORTS if options.has(name)), None)
    for name in names:
        topic = metadata.topics[name]
        if topic.error_code != ErrorCode.NONE:
            raise ApiError(topic.error_code, f"Topic {name} not found.")
        entries = configs[ConfigResourceType.TOPIC, name]
        overrides = [entry for entry in entries if entry.config_source != ConfigSource.DEFAULT_CONFIG]
        if report is None or (report == "topics-with-overrides" and overrides):
            print(topic_line(topic, [f"{entry.name}={entry.value}" for entry in overrides]))
        if report != "topics-with-overrides":
            required = next((int(each.value or 1) for each in entries if each.name == "min.insync.replicas"), 1)
            for partition in topic.partitions.values():
                if is_reported(partition, report, required, set(metadata.nodes)):
                    print(partition_line(name, partition))


async def _topics_to_describe(client: KafkaClient, options: Options) -> list[str]:
    text = options.text("topic-id")
    if text is None:
        return await existing_topics(client, options)
    try:
        topic_id = Uuid.from_text(text)
    except ValueError:
        raise ToolError(
            f"Input string `{text}` decoded as {len(text) * 3 // 4} bytes, which is not equal to the expected 16 bytes "
            "of a base64-encoded UUID"
        ) from None
    if topic_id == ZERO_UUID:
        return await existing_topics(client, options)
    metadata = await admin.list_topics(client)
    name = metadata.topic_names.get(topic_id)
    if name is None or (is_internal(name) and options.has("exclude-internal")):
        if options.has("if-exists"):
            return []
        raise ToolError(f"TopicId '{topic_id}' does not exist as expected")
    return [name]


def topic_line(topic: TopicMetadata, configs: Sequence[str]) -> str:
    """The line for a topic."""
    topic_id = f"\tTopicId: {topic.topic_id}" if topic.topic_id != ZERO_UUID else ""
    first = next(iter(topic.partitions.values()))
    return (
        f"Topic: {topic.name}{topic_id}\tPartitionCount: {len(topic.partitions)}"
        f"\tReplicationFactor: {len(first.replicas)}\tConfigs: {','.join(configs)}"
    )


def partition_line(topic: str, partition: PartitionMetadata) -> str:
    """The line for a partition."""
    leader = "none" if partition.leader < 0 else str(partition.leader)
    return (
        f"\tTopic: {topic}\tPartition: {partition.partition}\tLeader: {leader}"
        f"\tReplicas: {','.join(map(str, partition.replicas))}\tIsr: {','.join(map(str, partition.isr))}"
        "\tElr: N/A\tLastKnownElr: N/A"
    )


def is_reported(partition: PartitionMetadata, report: str | None, min_insync: int, alive: set[int]) -> bool:
    """Whether `report` includes a partition; without a report, all are included."""
    if report == "under-replicated-partitions":
        return len(partition.isr) < len(partition.replicas)
    if report == "unavailable-partitions":
        return partition.leader not in alive
    if report == "under-min-isr-partitions":
        return len(partition.isr) < min_insync
    if report == "at-min-isr-partitions":
        return len(partition.isr) == min_insync
    return True


def fail(error: BaseException) -> None:
    """Print a failure on standard output and, with Kafka's name of the error, on standard error."""
    print(f"Error while executing topic command : {reason(error)}")
    logger.error("%s", exception_text(error) if isinstance(error, ApiError) else reason(error))


def main(argv: list[str]) -> int:
    """Run the tool; returns its exit code."""
    return run_tool(argv, PARSER, check, work, fail=fail)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
