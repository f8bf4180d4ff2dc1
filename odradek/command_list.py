"""The commands of `odradek`: names, descriptions, and the module or script behind each.

The tool NAME is the module `tools.NAME` (with underscores for dashes). Its description is the first line of its
docstring, so no table needs maintenance. `spark-NAME` likewise is the job `spark_jobs.jobs.NAME`. `server-start`,
`server-stop`, their ZooKeeper counterparts and `build-fast` are scripts in `bin/`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

PACKAGE_DIR = Path(__file__).resolve().parent


class Script(NamedTuple):
    """A command that is a shell script in `bin/`."""

    file: str
    description: str


SERVER_SCRIPTS = {
    "server-start": Script("kafka-server-start.sh", "Start a broker; --dev needs no configuration file."),
    "server-stop": Script("kafka-server-stop.sh", "Stop a broker of this machine, or all of them."),
    "zookeeper-server-start": Script("zookeeper-server-start.sh", "Run a real ZooKeeper; needs Java."),
    "zookeeper-server-stop": Script("zookeeper-server-stop.sh", "Stop the ZooKeeper servers of this machine."),
    "build-fast": Script("build-fast", "Compile the record code with mypyc, for small records."),
}
COMPLETION = "completion"
COMPLETION_DESCRIPTION = "Print the completion script of a shell: bash, zsh, fish, tcsh or powershell."
USAGE = "Usage: odradek COMMAND [ARGS...]"
COLUMNS = ("Command", "COMMAND --help tells more")
_DESCRIPTION = re.compile(r'"""[^:]+: (.+?)(?: \([^()]*`\))?\.?(?:"""|\n)')


def server_root() -> Path:
    """The directory that holds the broker's packages: `odradek/_server` when installed, else the checkout's root."""
    installed = PACKAGE_DIR / "_server"
    return installed if installed.is_dir() else PACKAGE_DIR.parent


def runnable(package: Path) -> dict[str, Path]:
    """The runnable modules and subpackages of a package with their files, without `_`-named helpers."""
    names = {
        path.stem: path
        for path in package.glob("*.py")
        if not path.stem.startswith("_") and 'if __name__ == "__main__"' in path.read_text(encoding="utf-8")
    }
    return names | {path.parent.name: path for path in package.glob("*/__main__.py")}


def tool_files(root: Path) -> dict[str, Path]:
    """The commands of all tools and jobs, sorted, with the files that they run."""
    files = {name.replace("_", "-"): path for name, path in runnable(root / "tools").items()}
    jobs = runnable(root / "spark_jobs" / "jobs")
    files |= {f"spark-{name.replace('_', '-')}": path for name, path in jobs.items()}
    return dict(sorted(files.items()))


def tool_modules(root: Path) -> dict[str, str]:
    """The commands of all tools and jobs, sorted, with the modules that they run."""
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
    """The text of `odradek --help`."""
    lines = [f"  {name:22}  {text}" for name, text in commands(root).items()]
    return "\n".join([USAGE, "", "Commands (COMMAND --help tells more):", *lines])


def suggestion(word: str, known: Iterable[str]) -> str | None:
    """`did you mean start?` with the words of `known` that are similar, or None without any."""
    close = difflib.get_close_matches(word, known, n=3, cutoff=0.7)
    return f"did you mean {' or '.join(close)}?" if close else None


def unknown_command(root: Path, name: str) -> str:
    """The error for an unknown command, with similar commands."""
    if name == "spark":
        jobs = ", ".join(each.removeprefix("spark-") for each in commands(root) if each.startswith("spark-"))
        return f"odradek spark: name a job, one of: {jobs}"
    hint = suggestion(name, commands(root)) or "`odradek --help` lists the commands."
    return f"odradek: unknown command '{name}'; {hint}"
