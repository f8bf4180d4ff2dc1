"""Explain in one line what stopped a job: made of the exceptions of Python, Spark and Kafka's client."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

REPORTED = (OSError, ValueError, PySparkException, Py4JError)
"""Exceptions that `one_line` explains. Anything else is a bug of the job, and shows its traceback."""


class TopicMissingError(ValueError):
    """Tells that brokers deny a topic, which has to be there."""


_EXPLAINED = {
    "TimeoutException": "no answer from the brokers: {message}",
    "KafkaException": "{message}",
    "ConfigException": "bad client property: {message}",
}
"""Kafka's exceptions by class, where their own message alone does not say what happened."""

_BY_MESSAGE = {
    "Some data may have been lost": "records that were not read yet are gone: deleted by retention, by DeleteRecords, "
    "or with their topic (checkpoint-doctor shows which, --fail-on-data-loss false goes on)",
}
"""Messages of Spark's, by a part of them, that do not say what happened."""

_RAISED = re.compile(r"(?:ValueError|OSError|FileNotFoundError|FileExistsError): (.+)")
_CAUSED_BY = re.compile(r"(?:Caused by: |: )((?:\w+\.)+[\w$]+): (.+)")
_WRITTEN_TO = re.compile(r"writing rows to (?:file:)?(\S+?)\. ")
_STAGING = re.compile(r"/\.([^/]+)-staging$")


def one_line(failure: BaseException) -> str:
    """Tell what happened, to what; without a stack trace, also when Spark's message holds one."""
    if thrown := list(thrown_by(failure)):
        return _java_line(thrown)
    text = str(failure)
    return next((line.strip() for line in text.splitlines() if line.strip()), type(failure).__name__)


def thrown_by(failure: BaseException) -> Iterator[Any]:
    """The exception of Java's that Python's one stands for, and its causes; the innermost is the last."""
    thrown = getattr(failure, "java_exception", None) or getattr(failure, "_origin", None)
    while thrown is not None:
        yield thrown
        thrown = thrown.getCause()


def _explained(name: str, message: str) -> str:
    """One line of an exception's class and message."""
    by_message = next((text for part, text in _BY_MESSAGE.items() if part in message), message)
    return _EXPLAINED.get(name, "{message}").format(message=by_message)


def _raised_in_python(message: str) -> str | None:
    """Of what a batch's function raised, whose whole traceback Java has as the message: the text of a ValueError or
    OSError, else of the innermost cause of the exception of Java's that the function met in turn.
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
    """The innermost cause that has a message: what wraps it repeats it, or names a stage or a task."""
    line = str(causes[0])
    for thrown in causes:
        name, message = thrown.getClass().getSimpleName(), thrown.getMessage()
        if message:
            line = _raised_in_python(message) or _explained(name, message.strip().splitlines()[0])
    return line
