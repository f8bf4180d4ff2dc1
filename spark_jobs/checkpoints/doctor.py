"""Compares a query's offsets with the current state of its topics, and computes the offsets of a repaired checkpoint.

Pure: callers pass in the broker's answers, so that the rules can be read and tested without a broker.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Literal

from spark_jobs.checkpoints.checkpoint import Offsets

Kind = Literal["lost", "deleted", "future"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TopicNow:
    """Current state of a topic: its id (None if it has none), and the first offsets and ends of its partitions."""

    topic_id: str | None
    first: dict[str, int]
    ends: dict[str, int]
    configs: dict[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finding:
    """One wrong offset. A repaired checkpoint has `moved_to` instead, or lacks the partition if that is None."""

    kind: Kind
    topic: str
    partition: str
    offset: int
    cause: str
    moved_to: int | None

    def line(self) -> str:
        """One line for people: `lost t-0: offset 5, moves to 10: 5 records ... `."""
        moves = "leaves the checkpoint" if self.moved_to is None else f"moves to {self.moved_to:,}"
        return f"{self.kind} {self.topic}-{self.partition}: offset {self.offset:,}, {moves}: {self.cause}"


def examine(offsets: Offsets, now: dict[str, TopicNow], recorded_ids: dict[str, str]) -> Iterator[Finding]:
    """Findings on the query's next `offsets`; `recorded_ids` are the ids of its topics, if known."""
    for topic, partitions in sorted(offsets.items()):
        for partition, offset in sorted(partitions.items(), key=lambda item: int(item[0])):
            finding = _examine_partition(topic, partition, offset, now.get(topic), recorded_ids.get(topic))
            if finding is not None:
                yield finding


def _examine_partition(
    topic: str, partition: str, offset: int, now: TopicNow | None, recorded_id: str | None
) -> Finding | None:
    def found(kind: Kind, cause: str, moved_to: int | None) -> Finding:
        return Finding(kind=kind, topic=topic, partition=partition, offset=offset, cause=cause, moved_to=moved_to)

    if now is None:
        return found("deleted", "the topic does not exist", None)
    made_again = recorded_id is not None and now.topic_id is not None and recorded_id != now.topic_id
    again = f"the topic was made again (its id was {recorded_id}, and is {now.topic_id})" if made_again else ""
    if partition not in now.first:
        cause = again or "the topic was made again with fewer partitions (partitions are never taken away)"
        return found("deleted", cause, None)
    first, end = now.first[partition], now.ends[partition]
    if made_again:
        # The offset counts records of the old topic: the query has read none of the new one, whatever the numbers say.
        return found("future" if offset > end else "deleted", again, first)
    if offset < first:
        return found("lost", f"the log begins at {first:,}, {first - offset:,} offsets later: {lost_to(now)}", first)
    if offset > end:
        return found("future", *_future(now, recorded_id, first, end))
    return None


def lost_to(now: TopicNow) -> str:
    """Why the records before the log's start are gone, as far as the topic's configuration shows."""
    policy = now.configs.get("cleanup.policy", "")
    if policy and "delete" not in policy:
        return f"by DeleteRecords (cleanup.policy={policy} has no retention)"
    limits = [f"{key}={now.configs[key]}" for key in ("retention.ms", "retention.bytes") if _is_limit(now.configs, key)]
    if now.configs and not limits:
        return "by DeleteRecords (the topic has unlimited retention)"
    return f"by retention ({', '.join(limits) or 'not known'}) or by DeleteRecords: the broker does not keep which"


def _is_limit(configs: dict[str, str], key: str) -> bool:
    return configs.get(key, "-1") != "-1"


def _future(now: TopicNow, recorded_id: str | None, first: int, end: int) -> tuple[str, int]:
    beyond = f"the log ends at {end:,}"
    if recorded_id is not None and recorded_id == now.topic_id:
        return f"{beyond}, in the same topic: records were lost (an unclean election, or a restored disk)", end
    if first == 0:
        # Treat it as a new topic with only unread records: reading some twice loses none.
        return f"{beyond} and begins at 0: the topic was made again, or lost records", 0
    return f"{beyond}, and begins at {first:,}: records were lost (an unclean election, or a restored disk)", end


def repaired(offsets: Offsets, findings: list[Finding]) -> Offsets:
    """`offsets` with the partitions of the findings moved or removed; topics left without partitions are removed."""
    moves = {(finding.topic, finding.partition): finding.moved_to for finding in findings}
    kept: Offsets = {}
    for topic, partitions in offsets.items():
        for partition, offset in partitions.items():
            moved = moves.get((topic, partition), offset)
            if moved is not None:
                kept.setdefault(topic, {})[partition] = moved
    return kept


def repaired_end(end: Offsets, start: Offsets, now: dict[str, TopicNow], findings: list[Finding]) -> Offsets:
    """`end` of a planned but uncommitted batch, moved to lie between `start` and the ends of the logs.

    A partition that moved to offsets of a recreated topic is empty in this batch: the next batch reads it.
    """
    moved = {(finding.topic, finding.partition) for finding in findings if finding.kind != "lost"}
    kept: Offsets = {}
    for topic, partitions in end.items():
        for partition, offset in partitions.items():
            if topic not in now or partition not in now[topic].first:
                continue
            begin = start.get(topic, {}).get(partition, now[topic].first[partition])
            last = begin if (topic, partition) in moved else min(offset, now[topic].ends[partition])
            kept.setdefault(topic, {})[partition] = max(begin, last)
    return kept
