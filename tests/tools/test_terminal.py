"""Tables and progress as people see them, on pseudo-terminals."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tools.support.terminal import Table, lines_of

ROOT = Path(__file__).resolve().parents[2]
CONTROLS = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]|\r")
STDOUT, STDERR = 1, 2
BOTH = (STDOUT, STDERR)
TABLE = """
from tools.support.terminal import Table, show
show(["[no markup]", Table([("1", "dead"), ("2", "running")], ("BROKER", "STATE"))], {"dead": "red"})
"""
PLAIN = ["[no markup]", "BROKER  STATE", "1       dead", "2       running"]
PROGRESS = """
from tools.support.terminal import Progress
moment_s = 0.0
with Progress("Reading", "records", {total}, prints={prints}, now_s=lambda: moment_s) as progress:
    progress.advance(250)
    moment_s = {seconds}
    progress.advance(500)
    print("output")
"""
WITHOUT_RICH = "import importlib.util\nimportlib.util.find_spec = lambda name: None\n"


class Shown(NamedTuple):
    """The output of a program: to the terminal, the same without control sequences, and to pipes."""

    drawn: str
    text: str
    piped: str


def run(program: str, terminals: tuple[int, ...], command: str = "odradek x") -> Shown:
    """Run Python with `terminals`, of standard output and error, on a pseudo-terminal, and the others on pipes."""
    master, terminal = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.DEVNULL,
        stdout=terminal if STDOUT in terminals else subprocess.PIPE,
        stderr=terminal if STDERR in terminals else subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT), "ODRADEK_COMMAND": command, "TERM": "xterm", "COLUMNS": "100"},
    )
    os.close(terminal)
    drawn = b""
    while data := _read(master):
        drawn += data
    os.close(master)
    piped = b"".join(each or b"" for each in process.communicate(timeout=60)).decode()
    assert process.returncode == 0, (drawn, piped)
    return Shown(drawn.decode(), CONTROLS.sub("", drawn.decode()), piped)


def _read(master: int) -> bytes:
    try:
        return os.read(master, 65_536)
    except OSError:  # the end, as Linux reports it
        return b""


def test_a_table_in_a_pipe_is_plain_text() -> None:
    assert run(TABLE, (STDERR,)) == Shown("", "", "\n".join(PLAIN) + "\n")


def test_a_table_at_a_terminal_has_colours() -> None:
    shown = run(TABLE, BOTH)
    assert [line.rstrip() for line in shown.text.splitlines()] == PLAIN
    assert "\x1b[31mdead" in shown.drawn


def test_a_table_without_rich_is_plain_text_at_a_terminal() -> None:
    shown = run(WITHOUT_RICH + TABLE, BOTH)
    assert shown.text.splitlines() == PLAIN
    assert "\x1b" not in shown.drawn


def test_a_long_cell_does_not_widen_its_column() -> None:
    assert lines_of([Table([("x" * 80, "y"), ("x", "y")])]) == ["x" * 80 + "  y", "x" + " " * 61 + "y"]


@pytest.mark.parametrize(
    ("total", "line"),
    [("1000", r"Reading \S+ 750 of 1,000 records "), ("None", r"Reading 750 records 0:00:03")],
)
@pytest.mark.parametrize("prints", [True, False])
def test_progress_while_the_output_goes_elsewhere(total: str, line: str, *, prints: bool) -> None:
    shown = run(PROGRESS.format(total=total, prints=prints, seconds=3), (STDERR,))
    assert re.search(line, shown.text)
    assert shown.drawn.endswith("\x1b[2K"), "the line is removed"
    assert shown.piped == "output\n"


def test_output_appears_beside_progress_at_the_same_terminal() -> None:
    shown = run(PROGRESS.format(total="1000", prints=False, seconds=3), BOTH)
    assert "750 of 1,000 records" in shown.text
    assert shown.text.count("output") == 1


@pytest.mark.parametrize(
    ("why", "program", "terminals", "command"),
    [
        ("it takes less than two seconds", PROGRESS.format(total=1000, prints=False, seconds=1.9), BOTH, "odradek x"),
        ("its output is there", PROGRESS.format(total=1000, prints=True, seconds=3), BOTH, "odradek x"),
        ("nobody sees it", PROGRESS.format(total=1000, prints=False, seconds=3), (), "odradek x"),
        ("only the output is seen", PROGRESS.format(total=1000, prints=False, seconds=3), (STDOUT,), "odradek x"),
        ("it is Kafka's", PROGRESS.format(total=1000, prints=False, seconds=3), BOTH, "kafka-x.sh"),
        ("rich is missing", WITHOUT_RICH + PROGRESS.format(total=1000, prints=False, seconds=3), BOTH, "odradek x"),
    ],
)
def test_no_progress(why: str, program: str, terminals: tuple[int, ...], command: str) -> None:
    shown = run(program, terminals, command)
    assert shown.text + shown.piped == "output\n", why
    assert "\x1b" not in shown.drawn, why


@pytest.mark.parametrize("module", ["tools.topics", "tools.console_consumer", "tools.check_config", "odradek.cli"])
def test_nothing_is_imported_to_draw_before_something_is_drawn(module: str) -> None:
    program = f"import {module}, sys\nprint([name for name in sys.modules if name in ('rich', 'shtab', 'pygments')])"
    assert run(program, (STDERR,)).piped == "[]\n"
