"""The command `odradek NAME ARGS...`: the broker and every tool, by Kafka's script names without `kafka-`.

A tool or job runs as `__main__` in this process. `server-start`, `server-stop` and `build-fast` exec the scripts in
`bin/`, so that an installed broker starts, logs and stops like one in a checkout.
"""

from __future__ import annotations

import importlib.util
import os
import runpy
import sys
from pathlib import Path

from odradek.command_list import (
    COLUMNS,
    COMPLETION,
    SERVER_SCRIPTS,
    USAGE,
    commands,
    server_root,
    tool_modules,
    unknown_command,
    usage,
)


def run_script(root: Path, script: str, arguments: list[str]) -> None:
    """Exec the shell script `bin/SCRIPT`, which runs the broker with this interpreter; does not return."""
    environment = dict(os.environ)
    if root.name == "_server":
        environment["ODRADEK_PYTHON"] = sys.executable
        # Logs do not belong in site-packages: an installed broker's go to the working directory unless LOG_DIR is set.
        environment.setdefault("LOG_DIR", str(Path.cwd() / "logs"))
    os.execve("/bin/sh", ["sh", str(root / "bin" / script), *arguments], environment)  # noqa: S606


def run_tool(root: Path, name: str, module: str, arguments: list[str]) -> None:
    """Run the module as `__main__` with `arguments`; raises SystemExit as the tool ends."""
    # First, not last: another installed package named `config` or `client` must not shadow this one.
    sys.path.insert(0, str(root))
    sys.argv = [name, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def show_usage(root: Path) -> None:
    """Print the text of `odradek --help`, in columns that fit a terminal."""
    if not sys.stdout.isatty():
        print(usage(root))
        return
    sys.path.insert(0, str(root))
    from tools.support.terminal import Table, show

    show([USAGE, "", Table([*commands(root).items()], COLUMNS)])


def main(argv: list[str] | None = None) -> int:
    """Run one command; returns the exit code, unless the command itself ends the process."""
    arguments = sys.argv[1:] if argv is None else argv
    root = server_root()
    if not arguments:
        print(usage(root), file=sys.stderr)
        return 1
    if arguments[0] in {"-h", "--help", "help"}:
        show_usage(root)
        return 0
    name, *rest = arguments
    if name in {"-V", "--version"}:
        import odradek

        print(f"odradek {odradek.__version__}")
        return 0
    name = name.removeprefix("kafka-").removesuffix(".sh")
    if name == "spark" and rest:
        name, *rest = f"spark-{rest[0]}", *rest[1:]
    # Usage lines show the typed command; the scripts in `bin/` set their own names.
    os.environ.setdefault("ODRADEK_COMMAND", f"odradek {name}")
    if name in SERVER_SCRIPTS:
        run_script(root, SERVER_SCRIPTS[name].file, rest)
    if name == COMPLETION:
        from odradek import completion

        return completion.main(root, rest)
    module = tool_modules(root).get(name)
    if module is None:
        print(unknown_command(root, name), file=sys.stderr)
        return 1
    if name.startswith("spark-") and importlib.util.find_spec("pyspark") is None:
        print(f"odradek {name}: PySpark is missing; run: pip install 'odradek[spark]'", file=sys.stderr)
        return 1
    run_tool(root, name, module, rest)
    return 0
