"""The command `odradek NAME ARGS...`: the broker and every tool, by Kafka's script names without `kafka-`.

A tool NAME is the module `tools.NAME` (dashes become underscores), run as `__main__` in this process: there is no table
of commands to forget one in. `spark-NAME` is the job `spark_jobs.jobs.NAME`, in the same way. `server-start`,
`server-stop` and `build-fast` hand over to the scripts in `bin/`, so that an installed broker and a checkout's start,
become a daemon, log and stop by the same lines.
"""

from __future__ import annotations

import importlib.util
import os
import runpy
import sys
from pathlib import Path

PACKAGE_DIR = Path(__file__).resolve().parent
SERVER_SCRIPTS = {
    "server-start": "kafka-server-start.sh",
    "server-stop": "kafka-server-stop.sh",
    "build-fast": "build-fast",
}


def server_root() -> Path:
    """The directory that holds the broker's packages: `odradek/_server` when installed, else the checkout's root."""
    installed = PACKAGE_DIR / "_server"
    return installed if installed.is_dir() else PACKAGE_DIR.parent


def runnable(package: Path) -> list[str]:
    """The names of a package's modules and subpackages that can be run, `_`-named helpers left out."""
    names = [
        path.stem
        for path in package.glob("*.py")
        if not path.stem.startswith("_") and 'if __name__ == "__main__"' in path.read_text(encoding="utf-8")
    ]
    return names + [path.parent.name for path in package.glob("*/__main__.py")]


def tool_modules(root: Path) -> dict[str, str]:
    """Every tool's and job's subcommand, sorted, with the module that it runs."""
    modules = {name.replace("_", "-"): f"tools.{name}" for name in runnable(root / "tools")}
    jobs = root / "spark_jobs" / "jobs"
    modules |= {f"spark-{name.replace('_', '-')}": f"spark_jobs.jobs.{name}" for name in runnable(jobs)}
    return dict(sorted(modules.items()))


def usage(root: Path) -> str:
    """What `odradek --help` prints."""
    commands = "\n".join(f"  {name}" for name in [*SERVER_SCRIPTS, *tool_modules(root)])
    return f"Usage: odradek COMMAND [ARGS...]\n\nCommands (COMMAND --help tells more):\n{commands}"


def run_script(root: Path, script: str, arguments: list[str]) -> None:
    """Become the shell script `bin/SCRIPT`, which runs the broker with this interpreter; does not return."""
    environment = dict(os.environ)
    if root.name == "_server":
        environment["ODRADEK_PYTHON"] = sys.executable
        # site-packages is no place for logs: an installed broker's go to the working directory unless LOG_DIR is set.
        environment.setdefault("LOG_DIR", str(Path.cwd() / "logs"))
    os.execve("/bin/sh", ["sh", str(root / "bin" / script), *arguments], environment)  # noqa: S606


def run_tool(root: Path, name: str, module: str, arguments: list[str]) -> None:
    """Run the module as `__main__` with `arguments`; raises SystemExit as the tool ends."""
    # First, not last: a `config` or `client` package installed by somebody else must not shadow ours.
    sys.path.insert(0, str(root))
    sys.argv = [name, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def main(argv: list[str] | None = None) -> int:
    """Run one command; returns the exit code when the command itself does not end the process."""
    arguments = sys.argv[1:] if argv is None else argv
    root = server_root()
    if not arguments or arguments[0] in {"-h", "--help", "help"}:
        print(usage(root), file=sys.stdout if arguments else sys.stderr)
        return 0 if arguments else 1
    name, *rest = arguments
    if name in {"-V", "--version"}:
        import odradek

        print(f"odradek {odradek.__version__}")
        return 0
    name = name.removeprefix("kafka-").removesuffix(".sh")
    if name in SERVER_SCRIPTS:
        run_script(root, SERVER_SCRIPTS[name], rest)
    module = tool_modules(root).get(name)
    if module is None:
        print(f"odradek: unknown command '{name}'\n\n{usage(root)}", file=sys.stderr)
        return 1
    if name.startswith("spark-") and importlib.util.find_spec("pyspark") is None:
        print(f"odradek {name}: PySpark is missing: pip install 'odradek[spark]'", file=sys.stderr)
        return 1
    run_tool(root, name, module, rest)
    return 0
