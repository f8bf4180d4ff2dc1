"""One-line explanations of whatever stopped a job: exceptions of Python, Spark and Kafka's client. Also retries
while a starting broker denies topics that exist.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TextIO, TypeVar

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

REPORTED = (OSError, ValueError, PySparkException, Py4JError)
"""Exceptions that `one_line` explains. Any other is a bug in the job, and shows its traceback."""


class TopicMissingError(ValueError):
    """The brokers deny a topic that the job needs."""


_EXPLAINED = {
    "TimeoutException": "no answer from the brokers: {message}",
    "KafkaException": "{message}",
    "ConfigException": "bad client property: {message}",
}
"""Kafka's exceptions by class whose message alone does not explain the failure."""

_BY_MESSAGE = {
    "Some data may have been lost": "records that were not read yet are gone: deleted by retention, by DeleteRecords, "
    "or with their topic (checkpoint-doctor shows which, --fail-on-data-loss false goes on)",
}
"""Unclear messages of Spark, by a part of their text, with a clearer text."""

_RAISED = re.compile(r"(?:ValueError|OSError|FileNotFoundError|FileExistsError): (.+)")
_CAUSED_BY = re.compile(r"(?:Caused by: |: )((?:\w+\.)+[\w$]+): (.+)")
_WRITTEN_TO = re.compile(r"writing rows to (?:file:)?(\S+?)\. ")
_STAGING = re.compile(r"/\.([^/]+)-staging$")


def one_line(failure: BaseException) -> str:
    """One line that explains the failure, without a stack trace, even if Spark's message contains one."""
    if thrown := list(thrown_by(failure)):
        return _java_line(thrown)
    text = str(failure)
    return next((line.strip() for line in text.splitlines() if line.strip()), type(failure).__name__)


def thrown_by(failure: BaseException) -> Iterator[Any]:
    """The Java exception behind a Python exception, then its causes; the innermost comes last."""
    thrown = getattr(failure, "java_exception", None) or getattr(failure, "_origin", None)
    while thrown is not None:
        yield thrown
        thrown = thrown.getCause()


def _explained(name: str, message: str) -> str:
    """One line for an exception's class and message."""
    by_message = next((text for part, text in _BY_MESSAGE.items() if part in message), message)
    return _EXPLAINED.get(name, "{message}").format(message=by_message)


def _raised_in_python(message: str) -> str | None:
    """The cause of an exception in a batch function, which Java reports with the whole Python traceback as its message.

    Returns the text of a ValueError or OSError, else the innermost cause of the Java exception that the function met.
    """
    if "raised by the Python Proxy" not in message:
        return None
    lines = message.splitlines()
    if raised := [found[1] for line in lines if (found := _RAISED.match(line))]:
        return raised[-1]
    causes = [_explained(found[1].rpartition(".")[2], found[2]) for line in lines if (found := _CAUSED_BY.match(line))]
    table = _WRITTEN_TO.search(message)
    place = _STAGING.sub(r"/\1", table[1]) + ": " if table is not None else ""
    return f"{place}{causes[-1]}" if causes else None


def _java_line(causes: Sequence[Any]) -> str:
    """The innermost cause with a message: outer exceptions repeat it, or name a stage or a task."""
    line = str(causes[0])
    for thrown in causes:
        name, message = thrown.getClass().getSimpleName(), thrown.getMessage()
        if message:
            line = _raised_in_python(message) or _explained(name, message.strip().splitlines()[0])
    return line


T = TypeVar("T")

DENIALS = 20
"""How often a broker may deny a topic before the job gives up, with a pause of `PAUSE_S` after each denial."""

PAUSE_S = 1.0


def patiently(body: Callable[[], T], *, pause_s: float = PAUSE_S, out: TextIO | None = None) -> T:
    """Run `body`, and repeat it while a broker denies a topic; `body` must be safe to repeat.

    An Apache broker that has just started denies its topics until the controller has sent it their metadata. Spark
    retries when it looks for new records (`FETCH_OPTIONS`), but not when it reads a given range. `body` must create the
    frame that it reads: a frame remembers that planning failed. The wait is announced on `out` (stderr by default).
    Raises what `body` raises: a denial after `DENIALS` of them, anything else at once.
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
    """Whether a broker answered that it does not know a topic or partition."""
    names = [str(thrown.getClass().getSimpleName()) for thrown in thrown_by(failure)]
    return isinstance(failure, TopicMissingError) or "UnknownTopicOrPartitionException" in names
