"""The commands of `odradek`: names, descriptions, and the module or script behind each.

A tool NAME is the module `tools.NAME` (dashes become underscores); its description is the first line of its docstring,
so there is no table of commands to keep. `spark-NAME` is the job `spark_jobs.jobs.NAME`, in the same way.
`server-start`, `server-stop` and those of ZooKeeper's are scripts in `bin/`, as is `build-fast`.
"""

from __future__ import annotations

import difflib
import re
from pathlib import Path
from typing import NamedTuple

PACKAGE_DIR = Path(__file__).resolve().parent


class Script(NamedTuple):
    """A command that is a shell script in `bin/`."""

    file: str
    description: str


SERVER_SCRIPTS = {
    "server-start": Script("kafka-server-start.sh", "Start a broker; --dev needs no configuration file."),
    "server-stop": Script("kafka-server-stop.sh", "Stop the brokers of this machine, or one of them."),
    "zookeeper-server-start": Script("zookeeper-server-start.sh", "Run a real ZooKeeper; needs Java."),
    "zookeeper-server-stop": Script("zookeeper-server-stop.sh", "Stop the ZooKeeper servers of this machine."),
    "build-fast": Script("build-fast", "Compile the record code with mypyc, for small records."),
}
COMPLETION = "completion"
COMPLETION_DESCRIPTION = "Print the completion script of a shell: bash or zsh."
_DESCRIPTION = re.compile(r'"""[^:]+: (.+?)(?: \([^()]*`\))?\.?(?:"""|\n)')


def server_root() -> Path:
    """The directory that holds the broker's packages: `odradek/_server` when installed, else the checkout's root."""
    installed = PACKAGE_DIR / "_server"
    return installed if installed.is_dir() else PACKAGE_DIR.parent


def runnable(package: Path) -> dict[str, Path]:
    """The modules and subpackages of a package that can be run, `_`-named helpers left out, with their files."""
    names = {
        path.stem: path
        for path in package.glob("*.py")
        if not path.stem.startswith("_") and 'if __name__ == "__main__"' in path.read_text(encoding="utf-8")
    }
    return names | {path.parent.name: path for path in package.glob("*/__main__.py")}


def tool_files(root: Path) -> dict[str, Path]:
    """Every tool's and job's command, sorted, with the file that it runs."""
    files = {name.replace("_", "-"): path for name, path in runnable(root / "tools").items()}
    jobs = runnable(root / "spark_jobs" / "jobs")
    files |= {f"spark-{name.replace('_', '-')}": path for name, path in jobs.items()}
    return dict(sorted(files.items()))


def tool_modules(root: Path) -> dict[str, str]:
    """Every tool's and job's command, sorted, with the module that it runs."""
    relative = {name: path.relative_to(root).with_suffix("") for name, path in tool_files(root).items()}
    return {name: ".".join(path.parts).removesuffix(".__main__") for name, path in relative.items()}


def description(path: Path) -> str:
    """The first line of a tool's docstring as a sentence, without its name and Kafka's."""
    found = _DESCRIPTION.match(path.read_text(encoding="utf-8"))
    if found is None:
        return ""
    return f"{found[1][0].upper()}{found[1][1:]}."


def commands(root: Path) -> dict[str, str]:
    """Every command with its description."""
    tools = {name: description(path) for name, path in tool_files(root).items()}
    scripts = {name: script.description for name, script in SERVER_SCRIPTS.items()}
    return {**scripts, **tools, COMPLETION: COMPLETION_DESCRIPTION}


def usage(root: Path) -> str:
    """The answer to `odradek --help`."""
    lines = [f"  {name:22}  {text}" for name, text in commands(root).items()]
    return "\n".join(["Usage: odradek COMMAND [ARGS...]", "", "Commands (COMMAND --help tells more):", *lines])


def unknown_command(root: Path, name: str) -> str:
    """The message about a command that does not exist, with the closest ones that do."""
    if name == "spark":
        jobs = ", ".join(each.removeprefix("spark-") for each in commands(root) if each.startswith("spark-"))
        return f"odradek spark: name a job, one of: {jobs}"
    close = difflib.get_close_matches(name, commands(root), n=3, cutoff=0.7)
    hint = f"did you mean {' or '.join(close)}?" if close else "`odradek --help` lists the commands."
    return f"odradek: unknown command '{name}'; {hint}"
