"""Options as argparse4j reads them, which Kafka's performance and verification tools are written with.

Python's argparse is what argparse4j was copied from, so that only the differences are here: without any argument the
help goes to standard output with exit code 0; asked for, it has exit code 1, as have mistakes; and numbers have the
ranges of Java's types.
"""

from __future__ import annotations

import argparse
import logging
import re
from collections.abc import Awaitable, Callable
from typing import Final, NoReturn

from tools.common import run_work

_INT32: Final = range(-(2**31), 2**31)
_INT64: Final = range(-(2**63), 2**63)


class ArgumentParser(argparse.ArgumentParser):
    """The options of one tool, the program that Kafka calls `program`."""

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        """End with exit code 1, also after --help (`status` 0)."""
        super().exit(max(status, 1), message)

    def error(self, message: str) -> NoReturn:
        """Show usage and message, and end with exit code 1."""
        super().exit(1, f"{self.format_usage()}{self.prog}: error: {message}\n")


def run_parsed(argv: list[str], parser: ArgumentParser, work: Callable[[argparse.Namespace], Awaitable[int]]) -> int:
    """Parse and work; returns the exit code."""
    logging.basicConfig(level=logging.WARNING, format="[%(asctime)s] %(levelname)s %(message)s (%(name)s)")
    if not argv:
        parser.print_help()
        return 0
    try:
        arguments = parser.parse_args(argv)
    except SystemExit as end:
        return 1 if end.code else 0
    return run_work(lambda: work(arguments))


def add_servers(parser: ArgumentParser) -> None:
    """Add --bootstrap-server and its old name, one of which must be given: `bootstrap_server`."""
    group = parser.add_mutually_exclusive_group(required=True)
    metavar = "HOST1:PORT1[,HOST2:PORT2[...]]"
    group.add_argument(
        "--bootstrap-server", dest="bootstrap_server", metavar=metavar, help="The brokers to connect to."
    )
    group.add_argument(
        "--broker-list", dest="bootstrap_server", metavar=metavar, help="Deprecated name of --bootstrap-server."
    )


def int32(text: str) -> int:
    """An Integer. Raises ArgumentTypeError."""
    return _integer(text, "Integer", _INT32)


def int64(text: str) -> int:
    """A Long. Raises ArgumentTypeError."""
    return _integer(text, "Long", _INT64)


def double(text: str) -> float:
    """A Double. Raises ArgumentTypeError."""
    try:
        return float(text.replace("_", "x"))
    except ValueError:
        raise _unreadable(text, "Double") from None


def _integer(text: str, kind: str, valid: range) -> int:
    value = int(text) if re.fullmatch(r"[+-]?[0-9]{1,19}", text) else None
    if value is None or value not in valid:
        raise _unreadable(text, kind)
    return value


def _unreadable(text: str, kind: str) -> argparse.ArgumentTypeError:
    return argparse.ArgumentTypeError(f"could not convert '{text}' to {kind} (For input string: \"{text}\")")
