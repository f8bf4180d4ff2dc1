"""Completion of commands and options for bash and zsh.

eval "$(odradek completion bash)"        # in ~/.bashrc
eval "$(odradek completion zsh)"         # in ~/.zshrc, after compinit
"""

from __future__ import annotations

import importlib
import shlex
import sys
from pathlib import Path
from types import ModuleType

from odradek.command_list import COMPLETION, commands, tool_modules

SCRIPT_OPTIONS = {
    "server-start": ["--dev", "--help", "--override", "-daemon"],
    "server-stop": ["--help", "--node-id", "--process-role"],
    COMPLETION: ["bash", "zsh"],
}

BASH = """\
_odradek() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} words=
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
    *) [ "${{COMP_WORDS[1]}}" != completion ] || COMPREPLY=($(compgen -W "$words" -- "$current")) ;;
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
    if hasattr(module, "make_parser"):
        # argparse has no public way to list options.
        actions = module.make_parser()._actions
        return sorted(option for action in actions for option in action.option_strings if option.startswith("--"))
    return ["--help"]


def options_by_command(root: Path) -> dict[str, list[str]]:
    """The options of each command. Jobs are left out: importing them takes PySpark."""
    sys.path.insert(0, str(root))
    modules = {name: module for name, module in tool_modules(root).items() if module.startswith("tools.")}
    tools = {name: tool_options(importlib.import_module(module)) for name, module in modules.items()}
    return {**SCRIPT_OPTIONS, **tools}


def bash_script(root: Path) -> str:
    """The completion script of bash."""
    cases = [f'    {name}) words="{" ".join(options)}" ;;' for name, options in options_by_command(root).items()]
    return BASH.format(commands=" ".join(commands(root)), cases="\n".join(cases))


def zsh_script(root: Path) -> str:
    """The completion script of zsh."""
    described = [f"    {shlex.quote(f'{name}:{text}')}" for name, text in commands(root).items()]
    cases = [f"    {name}) compadd -- {' '.join(options)} ;;" for name, options in options_by_command(root).items()]
    return ZSH.format(commands="\n".join(described), cases="\n".join(cases))


def main(root: Path, arguments: list[str]) -> int:
    """Print the script of the shell that is named."""
    scripts = {"bash": bash_script, "zsh": zsh_script}
    if len(arguments) != 1 or arguments[0] not in scripts:
        is_help = arguments in (["--help"], ["-h"])
        text = 'Usage: odradek completion bash|zsh\n\nTo use it: eval "$(odradek completion bash)"'
        print(text, file=sys.stdout if is_help else sys.stderr)
        return 0 if is_help else 1
    print(scripts[arguments[0]](root), end="")
    return 0
