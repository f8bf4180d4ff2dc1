"""argparse with the exit codes of argparse4j, for the tools that Kafka writes with that copy of it."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from odradek import __version__
from tools.support.options import default_server


class CommandParser(argparse.ArgumentParser):
    """The options of one command of a tool. Mistakes end with exit code 1."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong, and how it is right."""
        self.print_usage(sys.stderr)
        self.exit(1, f"{self.prog}: error: {message}\n")


class ArgumentParser(CommandParser):
    """Mistakes and --help end with exit code 1, a command line without arguments shows the help and ends with 0."""

    def __init__(self, prog: str, description: str, version_flags: Sequence[str] = ("--version",)) -> None:
        """Make a parser. `prog` is Kafka's name of the tool, used when ODRADEK_COMMAND is not set."""
        prog = os.environ.get("ODRADEK_COMMAND", prog)
        super().__init__(prog=prog, description=description, allow_abbrev=False)
        self.add_argument(*version_flags, action="version", version=f"{__version__} (Odradek)")

    def add_commands(self) -> argparse._SubParsersAction[CommandParser]:
        """Take the name of a command, as `command`, and its options; the parsers of the commands are added here."""
        return self.add_subparsers(
            dest="command", title="commands", metavar="COMMAND", required=True, parser_class=CommandParser
        )

    def read(self, argv: Sequence[str], *, needs_arguments: bool = False) -> argparse.Namespace | int:
        """The arguments, or the exit code when there is nothing to do. With `needs_arguments`, none are a mistake."""
        if not argv and not needs_arguments:
            self.print_help()
            return 0
        names = [each.lstrip("-").partition("=")[0] for each in argv if each.startswith("-")]
        server = default_server([each.lstrip("-") for each in self._option_string_actions], names or argv)
        try:
            return self.parse_args(argv if server is None else ["--bootstrap-server", server, *argv])
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
