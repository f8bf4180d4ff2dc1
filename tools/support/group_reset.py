"""kafka-consumer-groups --reset-offsets: finds a group's new offsets, and shows, exports or sets them (KIP-122)."""

from __future__ import annotations

import csv
import io
import logging
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from client import admin, groups
from client.groups import OffsetAndMetadata
from client.kafka_client import KafkaClient
from protocol.errors import ApiError, ErrorCode
from protocol.topic_partition import TopicPartition
from tools.support.common import ToolError, now_ms, read_text
from tools.support.options import Options, UsageError


def parse_topic_arguments(arguments: Sequence[str]) -> dict[str, list[int] | None]:
    """Partitions by topic, or None for all of a topic. Raises UsageError for a partition that is not a number."""
    topics: dict[str, list[int] | None] = {}
    for argument in arguments:
        topic, colon, numbers = argument.partition(":")
        if not colon:
            topics[topic] = None
            continue
        partitions = []
        for number in numbers.split(","):
            if not number.isdigit():
                raise UsageError(f"Invalid partition '{number}' specified in topic arg '{argument}''")
            partitions.append(int(number))
        topics[topic] = partitions
    return topics


async def partitions_of_topics(
    client: KafkaClient, topics: Mapping[str, list[int] | None]
) -> tuple[list[TopicPartition], list[str]]:
    """The selected partitions, and the topics that were selected as a whole but do not exist."""
    whole = [topic for topic, partitions in topics.items() if partitions is None]
    metadata = await client.describe_topics(whole) if whole else None
    partitions = [TopicPartition(topic, partition) for topic, numbers in topics.items() for partition in numbers or ()]
    unknown = []
    for name in whole:
        topic = metadata.topics.get(name) if metadata else None
        if topic is None or topic.error_code != ErrorCode.NONE:
            unknown.append(name)
        else:
            partitions += [TopicPartition(name, partition) for partition in topic.partitions]
    return partitions, unknown


logger = logging.getLogger("org.apache.kafka.tools.consumer.group.ConsumerGroupCommand")

RESET_TARGETS = (
    "to-offset",
    "to-current",
    "to-datetime",
    "from-file",
    "by-duration",
    "to-earliest",
    "to-latest",
    "shift-by",
)
_DATETIME = re.compile(r"(\d+)-(\d+)-(\d+)T(\d+):(\d+):(\d+)\.(\d+)(Z|([+-])(\d\d)(?::(\d\d))?)")
_DURATION = re.compile(
    r"([-+]?)P(?:([-+]?\d+)D)?(T(?:([-+]?\d+)H)?(?:([-+]?\d+)M)?(?:([-+]?\d+(?:[.,]\d{0,9})?)S)?)?", re.IGNORECASE
)

Offsets = dict[TopicPartition, int]
Plan = dict[str, Offsets]
"""The new offsets by group."""


async def reset_offsets(client: KafkaClient, options: Options, group_ids: list[str]) -> Plan:
    """Find the new offsets of each empty group, and set them if requested."""
    plan: Plan = {}
    from_file = _read_file(options, group_ids) if options.has("from-file") else {}
    for group_id in group_ids:
        described, _ = await groups.describe_group(client, group_id)
        if described.group_state not in {"Empty", "Dead"}:
            print(
                f"\nError: Assignments can only be reset if the group '{group_id}' is inactive, but the current state "
                f"is {described.group_state}."
            )
            plan[group_id] = {}
            continue
        if options.has("from-file"):
            if group_id not in from_file:
                print(f"\nError: No reset plan for group {group_id} found")
            offsets = await _within_range(client, from_file.get(group_id, {}))
        else:
            offsets = await _new_offsets(client, options, group_id)
        plan[group_id] = offsets
        if options.has("execute") and offsets:
            await groups.alter_offsets(
                client, group_id, {partition: OffsetAndMetadata(offset) for partition, offset in offsets.items()}
            )
    return plan


def print_reset(plan: Plan, options: Options) -> None:
    """Print the plan as a table, or as CSV for --export."""
    rows = [
        (group_id, partition.topic, partition.partition, offset)
        for group_id, offsets in sorted(plan.items())
        for partition, offset in sorted(offsets.items())
    ]
    if options.has("export"):
        out = io.StringIO()
        csv.writer(out, lineterminator="\n").writerows(rows if len(plan) > 1 else [row[1:] for row in rows])
        print(out.getvalue())
        return
    print(f"\n{'GROUP':30} {'TOPIC':30} {'PARTITION':10} {'NEW-OFFSET':15}")
    for group_id, topic, partition, offset in rows:
        print(f"{group_id:30} {topic:30} {partition!s:10} {offset!s:15}")


async def _new_offsets(client: KafkaClient, options: Options, group_id: str) -> Offsets:
    """The new offsets of one group for the selected target. Raises ApiError, ToolError and UsageError."""
    committed: Mapping[TopicPartition, OffsetAndMetadata] = {}
    if any(map(options.has, ("all-topics", "to-current", "shift-by"))):
        committed = await groups.fetch_offsets(client, group_id)
    if options.has("all-topics"):
        partitions = list(committed)
    else:
        partitions, unknown = await partitions_of_topics(client, parse_topic_arguments(options.texts("topic")))
        if unknown:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    if options.has("to-earliest"):
        return await _offsets_at(client, partitions, admin.EARLIEST_TIMESTAMP)
    if options.has("to-latest"):
        return await _offsets_at(client, partitions, admin.LATEST_TIMESTAMP)
    if options.has("to-current"):
        known = {each: committed[each].offset for each in partitions if each in committed}
        others = [each for each in partitions if each not in committed]
        return known | await _offsets_at(client, others, admin.LATEST_TIMESTAMP)
    if options.has("to-offset"):
        return await _within_range(client, dict.fromkeys(partitions, options.required_number("to-offset")))
    if options.has("shift-by"):
        distance = options.required_number("shift-by")
        for each in partitions:
            if each not in committed:
                raise UsageError(f"Cannot shift offset for partition {each} since there is no current committed offset")
        return await _within_range(client, {each: committed[each].offset + distance for each in partitions})
    if options.has("to-datetime"):
        return await _offsets_from(client, partitions, parse_datetime(options.required_text("to-datetime")))
    return await _offsets_from(client, partitions, now_ms() - parse_duration(options.required_text("by-duration")))


async def _offsets_at(client: KafkaClient, partitions: list[TopicPartition], timestamp: int) -> Offsets:
    """Offsets at a timestamp or an end of the log. Raises ApiError for the first partition without one."""
    offsets = {}
    for partition, outcome in (await admin.list_offsets(client, dict.fromkeys(partitions, timestamp))).items():
        if isinstance(outcome, ApiError):
            raise outcome
        offsets[partition] = outcome.offset
    return offsets


async def _offsets_from(client: KafkaClient, partitions: list[TopicPartition], timestamp: int) -> Offsets:
    """The first offset at or after a time; the end of the log if all records are older."""
    offsets = await _offsets_at(client, partitions, timestamp)
    without = [partition for partition, offset in offsets.items() if offset < 0]
    for partition in sorted(without):
        print(
            f"\nWarn: Partition {partition.partition} from topic {partition.topic} is empty. "
            "Falling back to latest known offset."
        )
    return offsets | await _offsets_at(client, without, admin.LATEST_TIMESTAMP)


async def _within_range(client: KafkaClient, offsets: Offsets) -> Offsets:
    """Limit offsets to the range of the log, with a warning."""
    partitions = list(offsets)
    earliest = await _offsets_at(client, partitions, admin.EARLIEST_TIMESTAMP)
    latest = await _offsets_at(client, partitions, admin.LATEST_TIMESTAMP)
    checked = {}
    for partition, offset in offsets.items():
        checked[partition] = min(max(offset, earliest[partition]), latest[partition])
        if checked[partition] != offset:
            comparison = "higher than latest" if offset > latest[partition] else "lower than earliest"
            logger.warning(
                "New offset (%d) is %s offset for topic partition %s. Value will be set to %d",
                offset, comparison, partition, checked[partition],
            )  # fmt: skip
    return checked


def _read_file(options: Options, group_ids: list[str]) -> Plan:
    """The rows of --from-file: group, topic, partition, offset; the group may be missing if only one is selected."""
    path = options.required_text("from-file")
    try:
        text = read_text(path)
    except OSError as error:
        raise ToolError(f"java.io.IOException: Unable to read file {path}") from error
    plan: Plan = {}
    for number, row in enumerate(csv.reader(io.StringIO(text)), 1):
        if not row:
            continue
        cells = row if len(row) == 4 else [group_ids[0], *row]
        if len(cells) != 4 or not cells[2].isdigit() or not cells[3].isdigit():
            raise ToolError(f"Line {number} of {path} is not [group,]topic,partition,offset")
        plan.setdefault(cells[0], {})[TopicPartition(cells[1], int(cells[2]))] = int(cells[3])
    return plan


def parse_datetime(text: str) -> int:
    """Milliseconds since 1970 of a time, in UTC unless it names another zone. Raises ToolError.

    The format is `yyyy-MM-dd'T'HH:mm:ss.SSS` with an optional zone (Z, +hh:mm or +hh), parsed as Java's
    SimpleDateFormat does: numbers may have any width, and trailing text is ignored (Kafka's `Utils.getDateTime`).
    """
    if "T" not in text:
        raise ToolError(
            "java.text.ParseException: Error parsing timestamp. It does not contain a 'T' according to ISO8601 format"
        )
    if not any(mark in text.split("T")[1] for mark in "+-Z"):
        text += "Z"
    match = _DATETIME.match(text)
    try:
        if match is None:
            raise ValueError(text)
        year, month, day, hour, minute, second, milliseconds = map(int, match.groups()[:7])
        zone = 0 if match[8] == "Z" else int(f"{match[9]}{int(match[10]) * 60 + int(match[11] or 0)}")
        moment = datetime(year, month, day, hour, minute, second, milliseconds * 1000, UTC)
        if abs(zone) >= 24 * 60:
            raise ValueError(text)
    except ValueError:
        raise ToolError(f'java.text.ParseException: Unparseable date: "{text}"') from None
    return round(moment.timestamp() * 1000) - zone * 60_000


def parse_duration(text: str) -> int:
    """Milliseconds of an ISO 8601 duration with days, hours, minutes and seconds. Raises ToolError."""
    match = _DURATION.fullmatch(text)
    if match is None or match[3] in {"T", "t"} or not any(match.group(2, 4, 5, 6)):
        raise ToolError("Text cannot be parsed to a Duration")
    sign, days, _, hours, minutes, seconds = match.groups()
    whole_s = int(days or 0) * 86_400 + int(hours or 0) * 3_600 + int(minutes or 0) * 60
    duration_ms = whole_s * 1000 + round(float((seconds or "0").replace(",", ".")) * 1000)
    return -duration_ms if sign == "-" else duration_ms
