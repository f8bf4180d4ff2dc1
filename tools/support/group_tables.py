"""Tables of kafka-consumer-groups: a group's offsets, members and state."""

from __future__ import annotations

from collections.abc import Sequence

from client import admin, groups
from client.assignors import decode_assignment
from client.groups import DescribedGroup
from client.kafka_client import KafkaClient
from protocol.errors import ApiError, DecodeError
from protocol.topic_partition import TopicPartition, by_topic

MISSING = "-"
MIN_WIDTH = 15


def print_error(message: str) -> None:
    """Print an error on standard output, as Kafka's tool does."""
    print(f"\nError: {message}")


def print_table(rows: Sequence[Sequence[str]], widths: Sequence[int]) -> None:
    """Print a blank line and `rows`, with columns padded to `widths`; a width of 0 means no padding."""
    print()
    for row in rows:
        print(" ".join(f"{cell:{width}}" if width else cell for cell, width in zip(row, widths, strict=True)))


def _width(column: Sequence[str]) -> int:
    return max([MIN_WIDTH, *map(len, column)])


async def print_offsets(client: KafkaClient, group: DescribedGroup) -> None:
    """Print a row for each partition that is assigned or has an offset."""
    committed = await groups.fetch_offsets(client, group.group_id)
    owners = {
        partition: member for member in group.members for partition in decode_partitions(member.member_assignment)
    }
    partitions = sorted({*committed, *owners})
    if not partitions:
        return
    ends = await log_end_offsets(client, partitions)
    rows = [
        ("GROUP", "TOPIC", "PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG", "CONSUMER-ID", "HOST", "CLIENT-ID")
    ]
    for partition in partitions:
        current = committed[partition].offset if partition in committed else None
        end = ends.get(partition)
        lag = None if current is None or end is None else end - current
        member = owners.get(partition)
        rows.append(
            (
                group.group_id,
                partition.topic,
                str(partition.partition),
                _number(current),
                _number(end),
                _number(lag),
                member.member_id if member else MISSING,
                member.client_host if member else MISSING,
                member.client_id if member else MISSING,
            )
        )
    columns = list(zip(*rows, strict=True))
    print_table(
        rows, [_width(columns[0]), _width(columns[1]), 10, 15, 15, 15, _width(columns[6]), _width(columns[7]), 0]
    )


def _number(value: int | None) -> str:
    return MISSING if value is None else str(value)


def decode_partitions(assignment: bytes) -> list[TopicPartition]:
    """The partitions in a member's assignment; empty if it is unreadable."""
    try:
        return decode_assignment(assignment)
    except DecodeError:
        return []


async def log_end_offsets(client: KafkaClient, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
    """The ends of the partitions whose leaders answer."""
    found = await admin.list_offsets(client, dict.fromkeys(partitions, admin.LATEST_TIMESTAMP))
    return {partition: outcome.offset for partition, outcome in found.items() if not isinstance(outcome, ApiError)}


def print_members(group: DescribedGroup, *, verbose: bool) -> None:
    """Print a row for each member."""
    has_instances = any(member.group_instance_id for member in group.members)
    header = ["GROUP", "CONSUMER-ID", "GROUP-INSTANCE-ID", "HOST", "CLIENT-ID", "#PARTITIONS", "ASSIGNMENT"]
    rows = [header]
    for member in sorted(group.members, key=lambda each: (-len(each.member_assignment), each.member_id)):
        partitions = decode_partitions(member.member_assignment)
        rows.append(
            [
                group.group_id,
                member.member_id,
                member.group_instance_id or "",
                member.client_host,
                member.client_id,
                str(len(partitions)),
                show_assignment(partitions),
            ]
        )
    widths = [_width(column) for column in zip(*rows, strict=True)]
    widths[6] = 0
    if not verbose:
        rows = [[*row[:6], ""] for row in rows]
    if not has_instances:
        rows = [row[:2] + row[3:] for row in rows]
        del widths[2]
    print_table(rows, widths)


def show_assignment(partitions: Sequence[TopicPartition]) -> str:
    """`topic(0,1), other(0)`."""
    topics = by_topic(sorted(partitions)).items()
    return ", ".join(f"{topic}({','.join(map(str, each))})" for topic, each in topics) or MISSING


def print_state(group: DescribedGroup, coordinator: str) -> None:
    """Print the row about the group's state."""
    width = max(25, len(coordinator))
    print_table(
        [
            ("GROUP", "COORDINATOR (ID)", "ASSIGNMENT-STRATEGY", "STATE", "#MEMBERS"),
            (group.group_id, coordinator, group.protocol_data, group.group_state, str(len(group.members))),
        ],
        [width, 25, 20, 15, 0],
    )
