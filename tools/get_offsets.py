"""kafka-get-offsets: show the offsets of partitions at a time, or at their ends (Kafka class `GetOffsetShell`)."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import NamedTuple

from client import admin
from client.metadata import TopicMetadata
from protocol.errors import ApiError
from protocol.topic_partition import TopicPartition
from tools.support.common import (
    BOOTSTRAP_SERVER,
    COMMAND_CONFIG,
    ToolError,
    TopicFilter,
    make_client,
    read_properties,
    reason,
    run_tool,
)
from tools.support.options import Option, OptionParser, Options

TIMES = {
    "latest": admin.LATEST_TIMESTAMP,
    "earliest": admin.EARLIEST_TIMESTAMP,
    "max-timestamp": admin.MAX_TIMESTAMP,
    "earliest-local": -4,
    "latest-tiered": -5,
}
_RULE = re.compile(r"([^:,]*)(?::(?:([0-9]*)|(?:([0-9]*)-([0-9]*))))?")

Filter = Callable[[TopicMetadata, int], bool]

PARSER = OptionParser(
    "Show offsets of partitions as topic:partition:offset.",
    [
        BOOTSTRAP_SERVER,
        Option("broker-list", "Deprecated name of --bootstrap-server.", "host:port,..."),
        COMMAND_CONFIG,
        Option("topic", "Regular expression for topics; all when it is not given.", "topic"),
        Option("partitions", "Partitions by number, separated by commas; all when it is not given.", "partition ids"),
        Option(
            "topic-partitions",
            "Topics and partitions, separated by commas: TOPIC, TOPIC:N, TOPIC:N-M (without M), TOPIC:N- and TOPIC:-M; "
            "the topic is a regular expression, and all topics when it is left out.",
            "topic1:1,topic2:0-3,topic3:2-",
        ),
        Option(
            "time",
            "A timestamp in ms, whose next record is looked for; or -1 or latest, -2 or earliest, -3 or max-timestamp, "
            "-4 or earliest-local, -5 or latest-tiered.",
            "timestamp",
            default="latest",
        ),
        Option("exclude-internal-topics", "Leave the brokers' own topics out."),
    ],
)


class _TopicPartitionFilter(NamedTuple):
    """One part of --topic-partitions."""

    topics: TopicFilter
    low: int
    high: int | None


def check(options: Options) -> None:
    """Raise ToolError for invalid combinations of options."""
    if not options.has("bootstrap-server") and not options.has("broker-list"):
        raise ToolError("Error occurred: Missing required option(s) [bootstrap-server]")


async def work(options: Options) -> int:
    """Print the offset of each partition that has one, sorted."""
    if options.has("topic-partitions") and (options.has("topic") or options.has("partitions")):
        raise ToolError("--topic-partitions cannot be used with --topic or --partitions")
    timestamp = parse_time(options.required_text("time"))
    is_wanted = make_filter(options)
    path = options.text("command-config")
    servers = options.text("bootstrap-server") or options.text("broker-list")
    async with make_client(servers, read_properties(path) if path else {}, client_id="GetOffsetShell") as client:
        metadata = await admin.list_topics(client)
        exclude_internal = options.has("exclude-internal-topics")
        partitions = [
            TopicPartition(topic.name, partition)
            for topic in metadata.topics.values()
            if not (exclude_internal and topic.is_internal)
            for partition in topic.partitions
            if is_wanted(topic, partition)
        ]
        if not partitions:
            raise ToolError("Could not match any topic-partitions with the specified filters")
        found = await admin.list_offsets(client, dict.fromkeys(partitions, timestamp))
    for partition, outcome in sorted(found.items(), key=lambda item: item[0]):
        if isinstance(outcome, ApiError):
            print(f"Skip getting offsets for topic-partition {partition} due to: {reason(outcome)}", file=sys.stderr)
        elif outcome.offset >= 0:
            print(f"{partition.topic}:{partition.partition}:{outcome.offset}")
    return 0


def parse_time(text: str) -> int:
    """The timestamp that --time means. Raises ToolError."""
    try:
        return TIMES[text] if text in TIMES else int(text)
    except ValueError:
        raise ToolError(
            f"Malformed time argument {text}. Please use -1 or latest / -2 or earliest / -3 or max-timestamp / -4 or "
            "earliest-local / -5 or latest-tiered, or a specified long format timestamp"
        ) from None


def make_filter(options: Options) -> Filter:
    """The filter for the partitions that the options select. Raises ToolError for invalid rules."""
    rules_text = options.text("topic-partitions")
    if rules_text is not None:
        rules = [_parse_rule(part) for part in rules_text.split(",")]
        return lambda topic, partition: any(
            rule.topics.allows(topic.name, topic.is_internal)
            and rule.low <= partition
            and (rule.high is None or partition < rule.high)
            for rule in rules
        )
    topics = TopicFilter(options.text("topic") or ".*")
    partitions_text = options.text("partitions")
    if not partitions_text:
        return lambda topic, _: topics.allows(topic.name, topic.is_internal)
    try:
        wanted = {int(part) for part in partitions_text.split(",")}
    except ValueError:
        raise ToolError(
            f"--partitions expects a comma separated list of numeric partition ids, but received: {partitions_text}"
        ) from None
    return lambda topic, partition: topics.allows(topic.name, topic.is_internal) and partition in wanted


def _parse_rule(text: str) -> _TopicPartitionFilter:
    match = _RULE.fullmatch(text)
    if match is None:
        raise ToolError(f"Invalid rule specification: {text}")
    name, exact, low, high = match.groups()
    topics = TopicFilter(name or ".*")
    if exact:
        return _TopicPartitionFilter(topics, int(exact), int(exact) + 1)
    return _TopicPartitionFilter(topics, int(low or 0), int(high) if high else None)


def fail(error: BaseException) -> None:
    """Print a failure as Kafka's tool does."""
    print(f"Error occurred: {reason(error)}", file=sys.stderr)


def main(argv: list[str]) -> int:
    """Run the tool; returns its exit code."""
    return run_tool(argv, PARSER, check, work, fail=fail)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
