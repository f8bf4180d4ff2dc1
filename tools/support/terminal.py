"""Tables with colours, and the progress of long commands, for people at a terminal.

The package rich draws both. It is optional (the extra `tools`) and imported when there is something to draw. Without
it, or without a terminal, a table is plain text.
"""

from __future__ import annotations

import importlib.util
import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Final, NamedTuple, Self, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress

DELAY_S: Final = 2.0
"""Commands that take less time show no progress."""
_INTERVAL_S: Final = 0.2
_WIDEST: Final = 60


def can_draw(stream: TextIO) -> bool:
    """Whether a person sees `stream`, and rich is there to draw on it."""
    return stream.isatty() and os.environ.get("TERM") != "dumb" and importlib.util.find_spec("rich") is not None


# -- tables ------------------------------------------------------------------------------------------------------------


class Table(NamedTuple):
    """Rows of cells."""

    rows: Sequence[Sequence[str]]
    titles: Sequence[str] | None = None

    def lines(self) -> list[str]:
        """The rows as text, with columns padded to their longest cell, or to `_WIDEST` characters."""
        rows = [*([] if self.titles is None else [self.titles]), *self.rows]
        widths = [min(max(map(len, column)), _WIDEST) for column in zip(*rows, strict=True)]
        return ["  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


Part = str | Table


def lines_of(parts: Iterable[Part]) -> list[str]:
    """The plain text of lines and tables."""
    return [line for part in parts for line in (part.lines() if isinstance(part, Table) else [part])]


def show(parts: Iterable[Part], styles: Mapping[str, str] | None = None) -> None:
    """Print lines and tables to standard output. `styles` are rich's styles of cells by their text."""
    if not can_draw(sys.stdout):
        print("\n".join(lines_of(parts)), flush=True)
        return
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    console = Console(file=sys.stdout, highlight=False, markup=False)
    for part in parts:
        if isinstance(part, str):
            console.print(part)
            continue
        table = RichTable(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=part.titles is not None)
        for title in part.titles or part.rows[0]:
            table.add_column(title, header_style="bold", overflow="fold")
        for row in part.rows:
            table.add_row(*(Text(cell, (styles or {}).get(cell, "")) for cell in row))
        console.print(table)


# -- progress ----------------------------------------------------------------------------------------------------------


def is_kafkas_command() -> bool:
    """Whether the tool runs under Kafka's name for it, and must show what Kafka's script shows."""
    return os.environ.get("ODRADEK_COMMAND", "").startswith("kafka-")


class Progress:
    """A line on standard error that says how far a command is, from `DELAY_S` on to the end of the block.

    It needs a terminal and rich, and does not appear under Kafka's name of a tool. What the command prints meanwhile
    appears above the line.
    """

    def __init__(
        self,
        what: str,
        unit: str,
        total: float | None = None,
        *,
        prints: bool = False,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`total` counts `unit`s, None if unknown. A command that `prints` all the time shows progress only if standard
        output is not a terminal.
        """
        self.done = 0.0
        self._what = what
        self._unit = unit
        self._total = total
        self._now_s = now_s
        is_visible = can_draw(sys.stderr) and not is_kafkas_command() and not (prints and sys.stdout.isatty())
        self._start_s = now_s()
        self._next_s = self._start_s + DELAY_S if is_visible else math.inf
        self._drawn: RichProgress | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._drawn is not None:
            self._drawn.stop()

    def advance(self, count: float = 1) -> None:
        """Count what is done, and draw the line if it is due."""
        self.done += count
        if self._next_s == math.inf:
            return
        now_s = self._now_s()
        if now_s >= self._next_s:
            self._next_s = now_s + _INTERVAL_S
            self._draw()

    def _draw(self) -> None:
        if self._drawn is None:
            self._drawn = self._start()
        self._drawn.update(self._drawn.task_ids[0], completed=self.done, refresh=True)

    def _start(self) -> RichProgress:
        from rich import progress
        from rich.console import Console

        columns: list[progress.ProgressColumn] = [progress.TextColumn(self._what)]
        if self._total is None:
            columns += [progress.TextColumn("{task.completed:,.0f} " + self._unit), progress.TimeElapsedColumn()]
        else:
            of_total = progress.TextColumn("{task.completed:,.0f} of {task.total:,.0f} " + self._unit)
            columns += [progress.BarColumn(), of_total, progress.TimeRemainingColumn()]
        drawn = progress.Progress(
            *columns,
            console=Console(file=sys.stderr),
            transient=True,
            auto_refresh=False,  # no thread
            redirect_stdout=sys.stdout.isatty(),
            get_time=self._now_s,
        )
        drawn.add_task(self._what, total=self._total, completed=int(self.done))
        drawn.tasks[0].start_time = self._start_s
        drawn.start()
        return drawn
