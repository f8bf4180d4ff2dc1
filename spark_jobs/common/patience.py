"""Patience with brokers that deny topics which are there."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TextIO, TypeVar

from spark_jobs.common.errors import REPORTED, TopicMissingError, one_line, thrown_by

T = TypeVar("T")

DENIALS = 20
"""How often a broker may deny a topic before the job ends, with a pause of `PAUSE_S` after each."""
PAUSE_S = 1.0


def patiently(body: Callable[[], T], *, pause_s: float = PAUSE_S, out: TextIO | None = None) -> T:
    """Run `body`, which may be run again, until no broker denies a topic; says on `out` (stderr) that it waits.

    An Apache broker that has just started denies its topics, until its controller has told it of them. Spark asks again
    where it looks for new records (`FETCH_OPTIONS`), and not where it reads a given range. `body` makes the frame that
    it reads: a frame keeps that it could not be planned. Raises what `body` does: anything else at once, the denial
    after `DENIALS` of them.
    """
    for attempt in range(1, DENIALS):
        try:
            return body()
        except REPORTED as failure:
            if not is_denial(failure):
                raise
            if attempt == 1:
                print(f"waiting for a broker: {one_line(failure)}", file=out or sys.stderr, flush=True)
        time.sleep(pause_s)
    return body()


def is_denial(failure: BaseException) -> bool:
    """Whether a broker answered that it does not have a topic, or a partition of it."""
    names = [str(thrown.getClass().getSimpleName()) for thrown in thrown_by(failure)]
    return isinstance(failure, TopicMissingError) or "UnknownTopicOrPartitionException" in names
