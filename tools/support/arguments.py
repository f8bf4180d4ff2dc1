"""argparse with the behaviour of argparse4j, for tools that Kafka writes with that library."""

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
        """Print the mistake and the usage."""
        self.print_usage(sys.stderr)
        self.exit(1, f"{self.prog}: error: {message}\n")


class ArgumentParser(CommandParser):
    """Mistakes and --help end with exit code 1; a command line without arguments shows the help and ends with 0."""

    def __init__(self, prog: str, description: str, version_flags: Sequence[str] = ("--version",)) -> None:
        """Create a parser. `prog` is Kafka's name of the tool, used if ODRADEK_COMMAND is not set."""
        prog = os.environ.get("ODRADEK_COMMAND", prog)
        super().__init__(prog=prog, description=description, allow_abbrev=False)
        self.add_argument(*version_flags, action="version", version=f"{__version__} (Odradek)")

    def add_commands(self) -> argparse._SubParsersAction[CommandParser]:
        """Require a command, stored as `command`; add the commands' parsers to the result."""
        return self.add_subparsers(
            dest="command", title="commands", metavar="COMMAND", required=True, parser_class=CommandParser
        )

    def read(self, argv: Sequence[str], *, needs_arguments: bool = False) -> argparse.Namespace | int:
        """The arguments, or an exit code if the tool is done. `needs_arguments`: an empty command line is a mistake."""
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
    """A converter for `type=` with argparse4j's error message; `kind` is Java's name of the type."""

    def convert(text: str) -> int:
        try:
            return int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(
                f"could not convert '{text}' to {kind} (For input string: \"{text}\")"
            ) from None

    return convert
