"""Completion of commands and options, by shtab: `odradek completion SHELL` prints a script for the shell.

eval "$(odradek completion bash)"        # in ~/.bashrc
eval "$(odradek completion zsh)"         # in ~/.zshrc, after compinit
"""

from __future__ import annotations

import importlib
import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import Any, Final

import shtab

from odradek.command_list import COMPLETION, COMPLETION_DESCRIPTION, SERVER_SCRIPTS, commands, tool_modules

_FILES: Final = {"file", "json file", "property file", "config_file", "config-file", "payload_file", "properties"}
_DIRECTORIES: Final = {"dir"}
"""Names of values that are paths, in lower case."""


def make_parser() -> ArgumentParser:
    """The options of `odradek completion`."""
    parser = ArgumentParser(prog=f"odradek {COMPLETION}", description=COMPLETION_DESCRIPTION)
    parser.epilog = 'For bash, add to ~/.bashrc: eval "$(odradek completion bash)"'
    parser.add_argument("shell", choices=shtab.SUPPORTED_SHELLS)
    return parser


def _scripts() -> dict[str, ArgumentParser]:
    """The options of the scripts in `bin/`, which parse them without argparse."""
    parsers = {name: ArgumentParser(description=script.description) for name, script in SERVER_SCRIPTS.items()}
    for option, action in (("-daemon", "store_true"), ("--dev", "store_true"), ("--override", "append")):
        parsers["server-start"].add_argument(option, action=action)
    for option in ("--node-id", "--process-role"):
        parsers["server-stop"].add_argument(option)
    parsers["server-stop"].add_argument("--all", action="store_true")
    for name in ("server-start", "zookeeper-server-start"):
        parsers[name].add_argument("file", nargs="?")
    return parsers


def parser_of(module: str) -> ArgumentParser:
    """The parser of a tool. Empty for one that parses nothing, and for a job, whose import would require PySpark."""
    if not module.startswith("tools."):
        return ArgumentParser()
    found = importlib.import_module(module)
    has_commands = hasattr(found, "make_parser")
    parser: ArgumentParser = found.make_parser() if has_commands else getattr(found, "PARSER", ArgumentParser())
    return parser


def whole_parser(root: Path) -> ArgumentParser:
    """The parser of `odradek`, with those of all commands below it."""
    sys.path.insert(0, str(root))
    parsers = {**_scripts(), **{name: parser_of(module) for name, module in tool_modules(root).items()}}
    parsers[COMPLETION] = make_parser()
    whole = ArgumentParser(prog="odradek")
    whole.add_argument("-V", "--version", action="version")
    # The commands have their parsers already: `add_parser` takes what the "class" returns.
    classes: Any = lambda *, parser, **_: parser  # noqa: E731
    below = whole.add_subparsers(metavar="COMMAND", parser_class=classes)
    for name, what in commands(root).items():
        parser = below.add_parser(name, help=what, parser=parsers[name])
        parser.description = what.replace("%", "%%")
        _complete_paths(parser)
    return whole


def _complete_paths(parser: ArgumentParser) -> None:
    for action in parser._actions:  # argparse lacks a public way to list them
        value = str(action.metavar or action.dest).lower()
        if value in _FILES or value in _DIRECTORIES:
            action.complete = shtab.FILE if value in _FILES else shtab.DIRECTORY  # type: ignore[attr-defined]
        if isinstance(action.choices, dict):
            for each in action.choices.values():
                _complete_paths(each)


def main(root: Path, arguments: list[str]) -> int:
    """Print the script of the named shell."""
    shell = make_parser().parse_args(arguments).shell
    print(shtab.complete(whole_parser(root), shell))
    return 0
