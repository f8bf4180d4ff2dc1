"""Completion of commands and options for bash and zsh.

eval "$(odradek completion bash)"        # in ~/.bashrc
eval "$(odradek completion zsh)"         # in ~/.zshrc, after compinit
"""

from __future__ import annotations

import importlib
import shlex
import sys
from argparse import ArgumentParser
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from odradek.command_list import COMPLETION, commands, tool_modules

SCRIPT_OPTIONS = {
    "server-start": ["--dev", "--help", "--override", "-daemon"],
    "server-stop": ["--help", "--node-id", "--process-role"],
    COMPLETION: ["--help"],
}
SHELLS = ["bash", "zsh"]

BASH = """\
_odradek() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} words= actions=
  COMPREPLY=()
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W "{commands}" -- "$current"))
    return
  fi
  case ${{COMP_WORDS[1]}} in
{cases}
  esac
  case $current in
    -*) COMPREPLY=($(compgen -W "$words" -- "$current")) ;;
    *) [ "$COMP_CWORD" -ne 2 ] || COMPREPLY=($(compgen -W "$actions" -- "$current")) ;;
  esac
}}
complete -o default -F _odradek odradek
"""

ZSH = """\
_odradek() {{
  local -a commands
  commands=(
{commands}
  )
  if (( CURRENT == 2 )); then
    _describe command commands
    return
  fi
  case $words[2] in
{cases}
  esac
  _files
}}
compdef _odradek odradek
"""


def tool_options(module: ModuleType) -> list[str]:
    """The options of a tool, sorted."""
    if hasattr(module, "PARSER"):
        return sorted(f"--{name}" for name in module.PARSER.options)
    return sorted({word for parser in parsers_of(module) for word in words_of(parser)[0]} | {"--help"})


def tool_actions(module: ModuleType) -> list[str]:
    """The action names of a tool, sorted."""
    return sorted({word for parser in parsers_of(module) for word in words_of(parser)[1]})


def parsers_of(module: ModuleType) -> list[ArgumentParser]:
    """The parsers of a tool, if it uses argparse."""
    if hasattr(module, "make_parsers"):
        return list(module.make_parsers())
    return [module.make_parser()] if hasattr(module, "make_parser") else []


def words_of(parser: ArgumentParser) -> tuple[set[str], set[str]]:
    """The options of a parser and of its subparsers, and the names of its actions."""
    options: set[str] = set()
    actions: set[str] = set()
    for argument in parser._actions:  # argparse lacks a public way to list them
        options.update(option for option in argument.option_strings if option.startswith("--"))
        if argument.choices and not argument.option_strings:
            actions.update(map(str, argument.choices))
        if isinstance(argument.choices, dict):
            options.update(*(words_of(each)[0] for each in argument.choices.values()))
    return options, actions


class Words(NamedTuple):
    """The options of a command, and its actions."""

    options: list[str]
    actions: list[str]


def words_by_command(root: Path) -> dict[str, Words]:
    """The words of each command. Jobs are left out: importing them requires PySpark."""
    sys.path.insert(0, str(root))
    words = {name: Words(options, SHELLS if name == COMPLETION else []) for name, options in SCRIPT_OPTIONS.items()}
    for name, path in tool_modules(root).items():
        if path.startswith("tools."):
            module = importlib.import_module(path)
            words[name] = Words(tool_options(module), tool_actions(module))
    return words


def bash_script(root: Path) -> str:
    """The completion script of bash."""
    cases = [
        f'    {name}) words="{" ".join(words.options)}" actions="{" ".join(words.actions)}" ;;'
        for name, words in words_by_command(root).items()
    ]
    return BASH.format(commands=" ".join(commands(root)), cases="\n".join(cases))


def zsh_script(root: Path) -> str:
    """The completion script of zsh."""
    described = [f"    {shlex.quote(f'{name}:{text}')}" for name, text in commands(root).items()]
    cases = [
        f"    {name}) compadd -- {' '.join([*words.actions, *words.options])} ;;"
        for name, words in words_by_command(root).items()
    ]
    return ZSH.format(commands="\n".join(described), cases="\n".join(cases))


def main(root: Path, arguments: list[str]) -> int:
    """Print the script of the named shell."""
    scripts = {"bash": bash_script, "zsh": zsh_script}
    if len(arguments) != 1 or arguments[0] not in scripts:
        is_help = arguments in (["--help"], ["-h"])
        text = 'Usage: odradek completion bash|zsh\n\nTo use it: eval "$(odradek completion bash)"'
        print(text, file=sys.stdout if is_help else sys.stderr)
        return 0 if is_help else 1
    print(scripts[arguments[0]](root), end="")
    return 0
