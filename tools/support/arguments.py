"""argparse with the exit codes of argparse4j, for the tools that Kafka writes with that copy of it."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from odradek import __version__


class ArgumentParser(argparse.ArgumentParser):
    """Mistakes and --help end with exit code 1, a command line without arguments shows the help and ends with 0."""

    def __init__(self, prog: str, description: str) -> None:
        """Make a parser. `prog` is Kafka's name of the tool, used when ODRADEK_COMMAND is not set."""
        prog = os.environ.get("ODRADEK_COMMAND", prog)
        super().__init__(prog=prog, description=description, allow_abbrev=False)
        self.add_argument("--version", action="version", version=f"{__version__} (Odradek)")

    def error(self, message: str) -> NoReturn:
        """Say what is wrong, and how it is right."""
        self.print_usage(sys.stderr)
        self.exit(1, f"{self.prog}: error: {message}\n")

    def read(self, argv: Sequence[str]) -> argparse.Namespace | int:
        """The arguments, or the exit code when there is nothing to do."""
        if not argv:
            self.print_help()
            return 0
        try:
            return self.parse_args(argv)
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
            return 1 if "-h" in argv or "--help" in argv else code


def whole_number(kind: str) -> Callable[[str], int]:
    """A converter for `type=`, which complains as argparse4j does; `kind` is Java's name of the type."""

    def convert(text: str) -> int:
        try:
            return int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(
                f"could not convert '{text}' to {kind} (For input string: \"{text}\")"
            ) from None

    return convert
