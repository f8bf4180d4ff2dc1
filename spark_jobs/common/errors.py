"""Explain in one line what stopped a job: made of the exceptions of Python, Spark and Kafka's client."""

from __future__ import annotations

import re
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

REPORTED = (OSError, ValueError, PySparkException, Py4JError)
"""Exceptions that `one_line` explains. Anything else is a bug of the job, and shows its traceback."""

_EXPLAINED = {
    "TimeoutException": "no answer from the brokers: {message}",
    "KafkaException": "{message}",
    "ConfigException": "bad client property: {message}",
}
"""Kafka's exceptions by class, where their own message alone does not say what happened."""


_RAISED = re.compile(r"(?:ValueError|OSError|FileNotFoundError|FileExistsError): (.+)")
_RAISED_IN_JAVA = re.compile(r"(?:: |Caused by: )[\w.$]+(?:Error|Exception): (.+)")


def one_line(failure: BaseException) -> str:
    """Tell what happened, to what; without a stack trace, also when Spark's message holds one."""
    thrown = getattr(failure, "java_exception", None) or getattr(failure, "_origin", None)
    if thrown is not None:
        return _java_line(thrown)
    text = str(failure)
    return next((line.strip() for line in text.splitlines() if line.strip()), type(failure).__name__)


def _raised_in_python(message: str) -> str | None:
    """The text of what a batch's function raised: Java has its whole traceback as message.

    That of a ValueError or OSError, else of the innermost exception of what Spark was asked for.
    """
    lines = message.splitlines() if "raised by the Python Proxy" in message else []
    for pattern in (_RAISED, _RAISED_IN_JAVA):
        raised = [found[1] for line in lines if (found := pattern.match(line))]
        if raised:
            return raised[-1]
    return None


def _java_line(thrown: Any) -> str:
    """The innermost cause that has a message: what wraps it repeats it, or names a stage or a task."""
    line = str(thrown)
    while thrown is not None:
        name, message = thrown.getClass().getSimpleName(), thrown.getMessage()
        if message:
            first = _raised_in_python(message) or message.strip().splitlines()[0]
            line = _EXPLAINED.get(name, "{message}").format(message=first)
        thrown = thrown.getCause()
    return line
