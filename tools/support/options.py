"""The command lines of the tools: argparse, made to behave like the two libraries of Kafka's tools.

Most of Kafka's tools use jopt-simple (`OptionParser`); the others use argparse4j, a copy of argparse
(`ArgumentParser`).
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import textwrap
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NoReturn

from odradek import __version__
from odradek.command_list import suggestion

_INVALID_CHOICE: Final = re.compile(r"invalid choice: '([^']*)' \(choose from (.*)\)")
_WIDTH: Final = 80
_INT32: Final = range(-(2**31), 2**31)
_INT64: Final = range(-(2**63), 2**63)
_DEFAULT_SERVER: Final = "127.0.0.1:9092"
_SERVERS: Final = ("bootstrap-server", "broker-list", "bootstrap-controller", "zookeeper")


def is_own_command() -> bool:
    """Whether the tool runs as `odradek NAME`; under Kafka's name for it, it behaves exactly like Kafka's script."""
    return os.environ.get("ODRADEK_COMMAND", "").startswith("odradek ")


def default_server(options: Collection[str], given: Collection[str]) -> str | None:
    """Default of --bootstrap-server for a tool with `options`, if none of the `given` ones names a server: the local
    broker under `odradek NAME`, None under Kafka's name. Names are without dashes.
    """
    if not is_own_command() or "bootstrap-server" not in options or not given:
        return None
    return None if {*_SERVERS, "help", "h", "version"}.intersection(given) else _DEFAULT_SERVER


class UsageError(Exception):
    """An invalid command line; the message is shown with the options."""


class OptionError(Exception):
    """The value of one option is invalid."""


@dataclass(frozen=True, slots=True)
class Option:
    """One option. `argument` is the name of its value in the help, or None for a flag.

    `kind` is the type that the help shows and the value is converted to: String, Integer, Long. `default` is the text
    of a missing value.
    """

    name: str
    help: str
    argument: str | None = None
    kind: str = "String"
    default: str | None = None
    argument_optional: bool = False

    @property
    def synopsis(self) -> str:
        """`--name <String: what>`."""
        if self.argument is None:
            return f"--{self.name}"
        shown = f"{self.kind}: {self.argument}" if self.argument else self.kind
        return f"--{self.name} " + (f"[{shown}]" if self.argument_optional else f"<{shown}>")


HELP: Final = Option("help", "Print these options.")
VERSION: Final = Option("version", "Print the version.")


class OptionParser(argparse.ArgumentParser):
    """The options of one tool, as jopt-simple parses them; `purpose` is the first sentence of the help.

    `--name value`, `--name=value` and `-name value` are equivalent. Names are never abbreviated. A required argument is
    the next word, whatever it looks like, but not `--`. An option may occur several times. Words that belong to no
    option are ignored.
    """

    def __init__(self, purpose: str, options: Iterable[Option]) -> None:
        # With a width, argparse does not ask the terminal for each option, nor import shutil for it: 5 ms of a start.
        narrow = partial(argparse.HelpFormatter, width=_WIDTH)
        super().__init__(description=purpose, formatter_class=narrow, add_help=False, allow_abbrev=False)
        self.purpose = purpose
        self.options = {option.name: option for option in (*options, HELP, VERSION)}
        for option in self.options.values():
            name, text = f"--{option.name}", option.help.replace("%", "%%")
            if option.argument is None:
                self.add_argument(name, dest=option.name, action="append_const", const=None, help=text)
            else:
                nargs = "?" if option.argument_optional else None
                metavar = option.argument or option.kind
                self.add_argument(name, dest=option.name, action="append", nargs=nargs, metavar=metavar, help=text)

    def parse(self, argv: Sequence[str]) -> Options:
        """Parse a command line. Raises OptionError for an unknown option or a missing argument."""
        words = list(self._rewritten(argv))
        order = [word[2:].partition("=")[0] for word in words]
        found = vars(self.parse_args(words))
        given = {name: [value for value in found[name] if value is not None] for name in order}
        server = default_server(self.options, given)
        if server is not None:
            given["bootstrap-server"] = [server]
        return Options(self, given, order)

    def _rewritten(self, argv: Sequence[str]) -> Iterator[str]:
        """The options as `--name=value` and `--name`, which argparse cannot misunderstand. Raises OptionError."""
        words = list(argv)
        while words:
            word = words.pop(0)
            if not word.startswith("-") or word in {"-", "--"}:
                continue
            name, equals, value = word.lstrip("-").partition("=")
            option = self.options.get(name)
            if option is None:
                raise OptionError(f"{name} is not a recognized option{self._hint(name)}")
            if option.argument is None:
                yield f"--{name}"
                continue
            if not equals and (not option.argument_optional or (words and _is_argument(words[0], option))):
                value = words.pop(0) if words else "--"
                equals = "="
            if value == "--":  # which argparse would drop
                raise OptionError(f"Option {name} requires an argument")
            yield f"--{name}{equals}{value}"

    def _hint(self, name: str) -> str:
        """The end of the message about an unknown option."""
        if name == "zookeeper":
            return "; use --bootstrap-server, tools speak to brokers only"
        close = suggestion(f"--{name}", [f"--{each}" for each in self.options]) if is_own_command() else None
        return f"; {close}" if close else ""

    def format_help(self) -> str:
        """All options with their help, in two columns."""
        options = sorted(self.options.values(), key=lambda option: option.name)
        left = min(38, max(len(option.synopsis) for option in options))
        lines = [f"{'Option':{left}}  Description", f"{'------':{left}}  -----------"]
        for option in options:
            text = option.help + (f" (default: {option.default})" if option.default is not None else "")
            names = textwrap.wrap(option.synopsis, left, subsequent_indent="  ")
            helps = textwrap.wrap(text, _WIDTH - left - 2, subsequent_indent="  ") or [""]
            for row in range(max(len(names), len(helps))):
                name = names[row] if row < len(names) else ""
                described = helps[row] if row < len(helps) else ""
                lines.append(f"{name:{left}}  {described}".rstrip())
        return "\n".join(lines)


def _is_argument(word: str, option: Option) -> bool:
    """Whether the word after an option is its optional argument, possibly a negative number."""
    return not word.startswith("-") if option.kind == "String" else re.fullmatch(r"[+-]?\d+", word) is not None


class Options:
    """The parsed options of one command line of an `OptionParser`. As in jopt-simple, values are converted on access,
    so that a bad number is an error of the tool's work.
    """

    def __init__(self, parser: OptionParser, given: dict[str, list[str]], order: Sequence[str]) -> None:
        """`order` has every option as often, and where, it was given."""
        self.parser = parser
        self._given = given
        self.order = order

    def has(self, name: str) -> bool:
        """Whether the option was given."""
        return name in self._given

    def texts(self, name: str) -> list[str]:
        """All values of an option, or its default if it was not given."""
        default = self.parser.options[name].default
        if not self.has(name) and default is not None:
            return [default]
        return self._given.get(name, [])

    def text(self, name: str) -> str | None:
        """The value of an option, its default or None. Raises OptionError for several values."""
        values = self.texts(name)
        if len(values) > 1:
            raise OptionError(f"Found multiple arguments for option {name}, but you asked for only one")
        return values[0] if values else None

    def required_text(self, name: str) -> str:
        """The value of an option that `check` requires. Raises OptionError if it is missing."""
        value = self.text(name)
        if value is None:
            raise OptionError(f'Missing required argument "[{name}]"')
        return value

    def number(self, name: str) -> int | None:
        """The value of an option as integer of its kind, or None without a value. Raises OptionError."""
        text = self.text(name)
        if text is None:
            return None
        valid = _INT32 if self.parser.options[name].kind == "Integer" else _INT64
        try:
            value = int(text)
        except ValueError:
            value = None
        if value is None or value not in valid or not text.strip() == text or "_" in text:
            raise OptionError(f"Cannot parse argument '{text}' of option {name}")
        return value

    def required_number(self, name: str) -> int:
        """The integer value of an option that has a default or that `check` requires. Raises OptionError."""
        value = self.number(name)
        if value is None:
            raise OptionError(f'Missing required argument "[{name}]"')
        return value

    # -- what must and must not come together --------------------------------------------------------------------------

    def require(self, *names: str) -> None:
        """Raise UsageError unless all of these options were given."""
        for name in names:
            if not self.has(name):
                raise UsageError(f'Missing required argument "[{name}]"')

    def forbid(self, used: str, *names: str) -> None:
        """Raise UsageError if `used` was given together with any of the others."""
        if self.has(used):
            for name in names:
                if self.has(name):
                    raise UsageError(f'Option "[{used}]" can\'t be used with option "[{name}]"')


# -- argparse4j --------------------------------------------------------------------------------------------------------


class CommandParser(argparse.ArgumentParser):
    """The options of one command of a tool. Mistakes end with exit code 1."""

    def error(self, message: str) -> NoReturn:
        """Print the mistake and the usage, and under `odradek NAME` the word that may be meant."""
        choice = _INVALID_CHOICE.search(message) if is_own_command() else None
        if choice is not None and (hint := suggestion(choice[1], re.findall(r"[\w-]+", choice[2]))):
            message += f"; {hint}"
        self.print_usage(sys.stderr)
        self.exit(1, f"{self.prog}: error: {message}\n")


class ArgumentParser(CommandParser):
    """Mistakes and --help end with exit code 1, but --help of `odradek NAME` with 0, as does a command line without
    arguments, which shows the help.
    """

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
            return 1 if not is_own_command() and ("-h" in argv or "--help" in argv) else code


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
