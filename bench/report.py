"""From samples to the table, and to JSON: medians, ratios, targets."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from bench.scenario import Sample, Scenario

Samples = dict[str, list[Sample]]
"""The samples of one scenario by side, the baseline's first."""


@dataclass(frozen=True)
class Row:
    """One line of the table: a figure of both sides, and what their ratio should be."""

    title: str
    unit: str
    figures: tuple[float, float]
    target: float | None = None
    at_least: bool = True
    limit: float | None = None
    either: bool = False

    @property
    def ratio(self) -> float | None:
        """The second side's figure by the first's; None when the first is 0, or one side has none."""
        ratio = self.figures[1] / self.figures[0] if self.figures[0] else math.nan
        return None if math.isnan(ratio) else ratio

    @property
    def reached(self) -> bool | None:
        """Whether ratio and limit hold; None when neither is asked for, or there is no ratio to judge."""
        if self.ratio is None or (self.target is None and self.limit is None):
            return None
        goals = []
        if self.limit is not None:
            goals.append(self.figures[1] <= self.limit)
        if self.target is not None:
            goals.append(self.ratio >= self.target if self.at_least else self.ratio <= self.target)
        return any(goals) if self.either else all(goals)


def cpu(sample: Sample, seconds: float) -> float:
    """Seconds for each gigabyte when the sample has a size, else seconds."""
    return seconds / sample.gigabytes if sample.gigabytes else seconds


def median_of(samples: Sequence[Sample], name: str) -> float | None:
    """The median of a CPU figure; None when the scenario has none."""
    figures = [cpu(sample, seconds) for sample in samples if (seconds := getattr(sample, name)) is not None]
    return statistics.median(figures) if figures else None


def detail_of(samples: Sequence[Sample], name: str) -> float:
    """The median of a detail; not a number for a side that does not tell it."""
    return statistics.median(sample.details.get(name, math.nan) for sample in samples)


def rows(scenario: Scenario, samples: Samples) -> list[Row]:
    """The figure's line, the broker's and the client's CPU, and what the brokers did once they were warm."""
    first, second = samples.values()
    figures = statistics.median(s.value for s in first), statistics.median(s.value for s in second)
    lines = [
        Row(
            scenario.title,
            scenario.unit,
            figures,
            scenario.target,
            scenario.higher_is_better,
            scenario.limit,
            scenario.either,
        ),
    ]
    unit = "CPU s/GB" if first[0].gigabytes else "CPU s"
    for whose in ("broker", "client"):
        pair = median_of(first, f"{whose}_cpu_s"), median_of(second, f"{whose}_cpu_s")
        if pair[0] is not None and pair[1] is not None:
            target = scenario.cpu_target if whose == "broker" else None
            lines.append(Row(f"  {whose}", unit, (pair[0], pair[1]), target, at_least=False))
    lines += [
        Row(
            f"  {name.replace('_', ' ')}",
            "",
            (detail_of(first, name), detail_of(second, name)),
            scenario.detail_targets.get(name),
            at_least=False,
            limit=scenario.detail_limits.get(name),
        )
        for name in first[0].details | second[0].details
    ]
    warm = {side: [sample.warm for sample in both if sample.warm is not None] for side, both in samples.items()}
    if all(warm.values()):
        without_targets = dataclasses.replace(
            scenario, title="", target=None, cpu_target=None, limit=None, detail_targets={}, detail_limits={}
        )
        lines += [
            dataclasses.replace(row, title=f"  warm {row.title.strip()}".rstrip())
            for row in rows(without_targets, warm)
        ]
    return lines


def number(value: float) -> str:
    """Three digits that mean something; `-` for what is not a number."""
    if math.isnan(value):
        return "-"
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def goal(row: Row) -> str:
    """The target as the table prints it, with whether it was reached."""
    if row.reached is None:
        return ""
    parts = []
    if row.target is not None:
        parts.append(f"{'>=' if row.at_least else '<='} {row.target:.2f}")
    if row.limit is not None:
        parts.append(f"<= {number(row.limit)} {row.unit}".rstrip())
    return f"{(' or ' if row.either else ', ').join(parts)}  {'ok' if row.reached else 'MISSED'}"


def heading(names: Sequence[str]) -> str:
    """The table's first line; `names` are the two sides'."""
    return f"{'':38}{'':12}{names[0]:>14}{names[1]:>14}{'ratio':>8}  target"


def line(row: Row) -> str:
    """The table's line for a row."""
    ratio = f"{row.ratio:.2f}" if row.ratio is not None else "-"
    figures = f"{number(row.figures[0]):>14}{number(row.figures[1]):>14}"
    return f"{row.title:38}{row.unit:>12}{figures}{ratio:>8}  {goal(row)}".rstrip()
