"""Turns samples into the table and JSON: medians, ratios, targets."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from bench.scenario import Sample, Scenario

Samples = dict[str, list[Sample]]
"""The samples of one scenario by side, baseline first; a third entry is the second side once more (`--noise`)."""
MEMORY = ("MB", "kB")
BROKER_CPU = "broker_CPU"
"""Prefixes of the details that report the broker's CPU."""
MOST_SPENT: Final = 1.03
"""Limit for two states of the code: the second may use at most this multiple of the first's CPU or memory."""


@dataclass(frozen=True)
class Row:
    """One line of the table: the figures of both sides, and the target for their ratio."""

    title: str
    unit: str
    figures: tuple[float, float]
    target: float | None = None
    at_least: bool = True
    limit: float | None = None
    either: bool = False
    again: float = math.nan
    """The second side's figure from its second measurement."""
    is_noise: bool = False
    """Whether a ratio out of bounds is noise, since the broker used no more CPU."""

    @property
    def noise(self) -> float | None:
        """The ratio of two measurements of the second side, or None if it was measured once."""
        noise = self.again / self.figures[1] if self.figures[1] else math.nan
        return None if math.isnan(noise) else noise

    @property
    def ratio(self) -> float | None:
        """The second side's figure divided by the first's, or None if the first is 0 or a figure is missing."""
        ratio = self.figures[1] / self.figures[0] if self.figures[0] else math.nan
        return None if math.isnan(ratio) else ratio

    @property
    def is_within(self) -> bool | None:
        """Whether ratio and limit hold, or None without a target or a figure to judge."""
        goals = []
        if self.limit is not None and not math.isnan(self.figures[1]):
            goals.append(self.figures[1] <= self.limit)
        if self.target is not None and self.ratio is not None:
            goals.append(self.ratio >= self.target if self.at_least else self.ratio <= self.target)
        return (any(goals) if self.either else all(goals)) if goals else None

    @property
    def reached(self) -> bool | None:
        """Like `is_within`, but noise is within."""
        within = self.is_within
        return None if within is None else within or self.is_noise


def cpu(sample: Sample, seconds: float) -> float:
    """Seconds per gigabyte if the sample has a size, else seconds."""
    return seconds / sample.gigabytes if sample.gigabytes else seconds


def median_of(samples: Sequence[Sample], name: str) -> float:
    """The median of a CPU figure, or NaN if the scenario has none."""
    figures = [cpu(sample, seconds) for sample in samples if (seconds := getattr(sample, name)) is not None]
    return statistics.median(figures) if figures else math.nan


def detail_of(samples: Sequence[Sample], name: str) -> float:
    """The median of a detail, or NaN for a side that does not report it."""
    return statistics.median(sample.details.get(name, math.nan) for sample in samples)


def without_noise(lines: Sequence[Row]) -> list[Row]:
    """The rows of two states of the code: speed and waits are worse only if the broker's CPU is worse, too.

    Memory and CPU are judged separately.
    """
    spent = [row.reached for row in lines if is_cpu(row) and row.reached is not None]
    if not spent or not all(spent):
        return list(lines)
    return [row if is_cpu(row) or is_memory(row) else dataclasses.replace(row, is_noise=True) for row in lines]


def is_cpu(row: Row) -> bool:
    """Whether the row reports the broker's CPU."""
    return row.title == "  broker" or row.title.startswith(f"  {BROKER_CPU.replace('_', ' ')}")


def is_memory(row: Row) -> bool:
    """Whether the row reports memory or disk usage."""
    return any(unit in f"{row.title} {row.unit}".split() for unit in MEMORY)


def rows(scenario: Scenario, samples: Samples) -> list[Row]:
    """The rows of the figure, the CPU of broker and client, and the results of warm brokers."""
    sides = list(samples.values())
    first, second = sides[:2]

    def row(title: str, unit: str, figure: Callable[[Sequence[Sample]], float], target: float | None) -> Row:
        again = figure(sides[2]) if len(sides) > 2 else math.nan
        return Row(title, unit, (figure(first), figure(second)), target, at_least=False, again=again)

    lines = [
        dataclasses.replace(
            row(scenario.title, scenario.unit, lambda side: statistics.median(s.value for s in side), scenario.target),
            at_least=scenario.higher_is_better,
            limit=scenario.limit,
            either=scenario.either,
        )
    ]
    unit = "CPU s/GB" if first[0].gigabytes else "CPU s"
    for whose in ("broker", "client"):
        target = scenario.cpu_target if whose == "broker" else None
        spent = row(f"  {whose}", unit, partial(median_of, name=f"{whose}_cpu_s"), target)
        if not any(map(math.isnan, spent.figures)):
            lines.append(spent)
    for name in first[0].details | second[0].details:
        target = scenario.detail_targets.get(name)
        if scenario.compares_states and name.startswith(BROKER_CPU):
            target = MOST_SPENT
        detail = row(f"  {name.replace('_', ' ')}", "", partial(detail_of, name=name), target)
        lines.append(dataclasses.replace(detail, limit=scenario.detail_limits.get(name)))
    if scenario.compares_states:
        lines = without_noise(lines)
    warm = {side: [sample.warm for sample in both if sample.warm is not None] for side, both in samples.items()}
    if all(warm.values()):
        without_targets = dataclasses.replace(
            scenario,
            title="",
            target=None,
            cpu_target=None,
            limit=None,
            detail_targets={},
            detail_limits={},
            compares_states=False,
        )
        lines += [
            dataclasses.replace(row, title=f"  warm {row.title.strip()}".rstrip())
            for row in rows(without_targets, warm)
        ]
    return lines


def number(value: float) -> str:
    """Three significant digits; `-` for NaN."""
    if math.isnan(value):
        return "-"
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def goal(row: Row) -> str:
    """The target as the table prints it, and whether it was reached."""
    if row.reached is None:
        return ""
    parts = []
    if row.target is not None:
        parts.append(f"{'>=' if row.at_least else '<='} {row.target:.2f}")
    if row.limit is not None:
        parts.append(f"<= {number(row.limit)} {row.unit}".rstrip())
    found = "ok" if row.is_within else "noise: no more CPU" if row.is_noise else "MISSED"
    return f"{(' or ' if row.either else ', ').join(parts)}  {found}"


def heading(names: Sequence[str], *, noise: bool = False) -> str:
    """The header line of the table; `names` are those of the two sides."""
    return f"{'':38}{'':12}{names[0]:>14}{names[1]:>14}{'ratio':>8}{'noise' if noise else '':>{8 * noise}}  target"


def line(row: Row) -> str:
    """The table's line for a row."""
    ratio = f"{row.ratio:.2f}" if row.ratio is not None else "-"
    noise = f"{row.noise:>8.2f}" if row.noise is not None else ""
    figures = f"{number(row.figures[0]):>14}{number(row.figures[1]):>14}"
    return f"{row.title:38}{row.unit:>12}{figures}{ratio:>8}{noise}  {goal(row)}".rstrip()


def spread(ratios: Sequence[float]) -> str:
    """The smallest and the largest ratio; `-` without any."""
    return f"{min(ratios):.2f} to {max(ratios):.2f}" if ratios else "-"


def noise_of_the_machine(lines: Sequence[Row], *, of_ratios: bool) -> str:
    """How far two measurements of the same code differ. `of_ratios`: both sides of the table are the same code."""
    found = {
        row: ratio for row in lines if (ratio := row.ratio if of_ratios else row.noise) is not None and row.figures[0]
    }
    kinds = {"figures": lambda row: row.title[:1] != " ", "the broker's CPU": is_cpu}
    said = [f"{kind} {spread([ratio for row, ratio in found.items() if of(row)])}" for kind, of in kinds.items()]
    return f"Noise of this machine, as ratios of two measurements of the same code: {', '.join(said)}"


def worse(results: Mapping[str, Sequence[Row]]) -> str:
    """The rows, by scenario, that are worse in the second state of the code than in the first."""
    found = [
        f"{name}{'' if row.title[:1] != ' ' else ' (' + row.title.strip() + ')'} {row.ratio or 0:.2f}"
        for name, lines in results.items()
        for row in lines
        if row.reached is False
    ]
    return f"Worse: {', '.join(found) or 'none'}"
