"""Show a table that `aggregate` made of flights: print it, and draw the mean delays as an SVG.

    python spark_jobs/tour/chart.py hourly hourly.svg

Needs only pyarrow. Rows of later batches replace those of earlier ones, as `aggregate --mode update` intends.
"""

from __future__ import annotations

import datetime as dt
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.dataset as datasets

Table = dict[dt.datetime, dict[str, dict[str, Any]]]
"""Rows by hour and airport."""

WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 760, 340, 60, 45, 20, 45
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")
STEP_MIN = 50


def read_table(directory: str) -> Table:
    """The newest row of each hour and airport, in order of the hours."""
    rows = datasets.dataset(directory, format="parquet", partitioning="hive").to_table().to_pylist()
    table: Table = {}
    for row in sorted(rows, key=lambda row: (row["window_start"], row["batch_id"])):
        table.setdefault(row["window_start"], {})[row["origin"]] = row
    return table


def airports_of(table: Table) -> list[str]:
    """The airports in order of their names."""
    return sorted({airport for rows in table.values() for airport in rows})


def lines(table: Table) -> Iterator[str]:
    """The table as text: a line for each hour, with the flights and their mean delay in minutes for each airport."""
    airports = airports_of(table)
    yield f"{'hour (UTC)':16}" + "".join(f"{f'{airport} flights':>15}{'delay':>7}" for airport in airports)
    for hour, rows in table.items():
        cells = [(rows[airport]["count"], rows[airport]["avg_dep_delay"]) if airport in rows else (0, None)
                 for airport in airports]  # fmt: skip
        shown = [f"{flights:>15}{'-' if delay is None else f'{delay:.1f}':>7}" for flights, delay in cells]
        yield f"{hour:%Y-%m-%d %H:%M}" + "".join(shown)


def svg(table: Table) -> str:
    """A line for each airport: the mean delay of each hour, with a gap where no flight left."""
    hours, airports = list(table), airports_of(table)
    top = STEP_MIN * -(-int(max(_delays(table))) // STEP_MIN)
    low = min(0.0, *_delays(table))
    across = (WIDTH - LEFT - RIGHT) / max(1, len(hours) - 1)

    def down(delay: float) -> float:
        return TOP + (top - delay) / (top - low) * (HEIGHT - TOP - BOTTOM)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-size="12"',
        '  font-family="sans-serif">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="24" font-size="15">Mean departure delay in minutes, by airport and scheduled hour</text>',
        f'<text x="{LEFT}" y="{HEIGHT - 8}" fill="#555555">hours of {hours[0]:%Y-%m-%d} (UTC)</text>',
    ]
    for minutes in range(0, top + 1, STEP_MIN):
        parts.append(f'<path d="M{LEFT} {down(minutes):.1f}H{WIDTH - RIGHT}" stroke="#dddddd"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{down(minutes) + 4:.1f}" text-anchor="end">{minutes}</text>')
    for number, hour in enumerate(hours):
        x = LEFT + number * across
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - 26}" text-anchor="middle">{hour:%H}</text>')
    for place, (airport, colour) in enumerate(zip(airports, COLOURS, strict=False)):
        path, pen = "", "M"
        for number, rows in enumerate(table.values()):
            delay = rows[airport]["avg_dep_delay"] if airport in rows else None
            if delay is not None:
                path += f"{pen}{LEFT + number * across:.1f} {down(delay):.1f}"
            pen = "M" if delay is None else "L"
        parts.append(f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        x = WIDTH - RIGHT - 50 * (len(airports) - place - 1)
        parts.append(f'<text x="{x}" y="24" text-anchor="end" fill="{colour}" font-weight="bold">{airport}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _delays(table: Table) -> list[float]:
    cells = [row["avg_dep_delay"] for rows in table.values() for row in rows.values()]
    return [cell for cell in cells if cell is not None]


def main(argv: list[str]) -> int:
    """Print the table of a directory, and draw it into a file."""
    if len(argv) != 2:
        print("usage: chart.py TABLE FILE.svg", file=sys.stderr)
        return 2
    table = read_table(argv[0])
    print("\n".join(lines(table)))
    Path(argv[1]).write_text(svg(table), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
