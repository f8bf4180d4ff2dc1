"""Lag and rate of a running query, one line a batch."""

from __future__ import annotations

import json
import sys
from typing import Any, TextIO

from pyspark.sql.streaming.query import StreamingQuery

Offsets = dict[str, dict[str, int]]


def records_between(earlier: Offsets, later: Offsets) -> dict[str, int]:
    """How many offsets lie from `earlier` to `later`, for each `topic-partition` that both know."""
    return {
        f"{topic}-{partition}": max(0, offset - earlier[topic][partition])
        for topic, partitions in later.items()
        for partition, offset in partitions.items()
        if partition in earlier.get(topic, {})
    }


def parse_offsets(value: Any) -> Offsets:
    """A source's offsets as the progress event carries them: JSON, text or parsed, or null before the first batch."""
    parsed: Offsets | None = json.loads(value) if isinstance(value, str) else value
    return parsed or {}


def progress_line(progress: dict[str, Any]) -> str | None:
    """One line about a batch from a query's progress (its JSON as a dict); None when the batch had no records."""
    source = progress["sources"][0]
    end = parse_offsets(source["endOffset"])
    # Offsets, where the batch before is known: Spark's own count doubles when dead letters make it read a batch twice.
    read = sum(records_between(parse_offsets(source["startOffset"]), end).values()) or source["numInputRows"]
    if not read:
        return None
    seconds = progress["batchDuration"] / 1000
    rate = f"{read / seconds:,.0f} records/s" if seconds else "at once"
    behind = records_between(end, parse_offsets(source.get("latestOffset")))
    text = f"batch {progress['batchId']}: {read:,} records in {seconds:.1f} s ({rate}), lag {sum(behind.values()):,}"
    if behind and max(behind.values()):
        furthest = max(behind, key=behind.__getitem__)
        text += f" ({furthest}: {behind[furthest]:,})"
    return text


class ProgressReporter:
    """Prints `progress_line` of each batch of one query, once, when `report` is called.

    Called by the job's own loop: a listener would run in a callback thread, and lose its last batch at the end.
    """

    def __init__(self, query: StreamingQuery, out: TextIO = sys.stderr) -> None:
        self._query = query
        self._out = out
        self._reported = -1

    def report(self) -> None:
        """Print the batches that ended since the last call (of the last hundred, which is what Spark remembers)."""
        for event in self._query.recentProgress:
            # Its JSON text: the object that PySpark makes of it holds offsets as the text of Python dicts.
            progress = json.loads(event.json)
            if progress["batchId"] <= self._reported:
                continue
            line = progress_line(progress)
            if line is not None:
                print(line, file=self._out, flush=True)
                self._reported = progress["batchId"]
