"""The command behind bench/run."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import resource
import shutil
import sys
import time
import uuid
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from bench.brokers import SIDES, Broker
from bench.load import Load
from bench.report import Row, Samples, heading, line, rows
from bench.scenarios import READY_TOPIC, SCENARIOS, Context, Sample, Scenario

SETTLE_S = 3
"""A moment of quiet between a broker's start and its load, the same for both sides."""


def build_parser() -> argparse.ArgumentParser:
    """The options."""
    parser = argparse.ArgumentParser(prog="bench/run", description="Apache Kafka and Odradek side by side.")
    names = ", ".join(scenario.name for scenario in SCENARIOS)
    parser.add_argument("--only", metavar="NAME,...", help=f"of: {names}")
    parser.add_argument("--rounds", type=int, help="samples of each side (default: as each scenario says)")
    parser.add_argument("--scale", type=float, default=1.0, help="shorter loads, for a look: 0.1 (default: 1)")
    parser.add_argument("--json", metavar="FILE", help="write every sample and the table's rows there, too")
    parser.add_argument(
        "--sides", default="kafka,odradek", help="the two to compare; kafka,kafka shows what a ratio of 1 looks like"
    )
    return parser


def select(only: str | None) -> list[Scenario]:
    """The scenarios named, in their own order; raises ValueError naming what is none."""
    if only is None:
        return SCENARIOS
    names = [name.strip() for name in only.split(",")]
    unknown = sorted(set(names) - {scenario.name for scenario in SCENARIOS})
    if unknown:
        raise ValueError(f"--only {','.join(unknown)}: no such scenario")
    return [scenario for scenario in SCENARIOS if scenario.name in names]


def settle() -> None:
    """Let the disk finish with what the sample before has left: who starts in a blink would pay for it otherwise."""
    os.sync()
    time.sleep(SETTLE_S)


def take_sample(scenario: Scenario, context: Context, kind: type[Broker]) -> Sample:
    """One sample of one side, on a broker of its own; with `also_warm` also what the same broker does afterwards."""

    def measure() -> Sample:
        return scenario.measure(context, broker, f"bench-{scenario.name}-{uuid.uuid4().hex[:12]}")

    broker = kind()
    broker.environment = scenario.environment
    try:
        if scenario.launches:
            broker.prepare()
        else:
            broker.start()
            # A port that accepts is not yet a broker that leads: Kafka refuses new topics for a moment after it.
            context.load.run("first", broker.address, READY_TOPIC)
            settle()
        sample = measure()
        if scenario.also_warm:
            measure()
            sample = dataclasses.replace(sample, warm=measure())
    finally:
        broker.stop()
        if scenario.leaves_many_files:
            context.until_the_end.callback(broker.remove)
        else:
            broker.remove()
    return sample


def run_scenario(scenario: Scenario, context: Context, kinds: Sequence[type[Broker]], rounds: int) -> Samples:
    """`rounds` samples of each side, in turns: whoever went first in one round goes second in the next."""
    taken: list[list[Sample]] = [[], []]
    for round_number in range(rounds):
        for index in (0, 1) if round_number % 2 == 0 else (1, 0):
            sample = take_sample(scenario, context, kinds[index])
            taken[index].append(sample)
            said = f"{kinds[index].name}: {sample.value:,.2f} {scenario.unit}"
            print(f"  {scenario.name} {said}", file=sys.stderr, flush=True)
    return {"first": taken[0], "second": taken[1]}


def raise_file_limit() -> None:
    """As many open files as may be: 10,000 partitions need more than the usual 1,024."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the scenarios and print the table; 0 when every one gave a figure, also where a target was missed."""
    arguments = build_parser().parse_args(argv)
    try:
        scenarios = select(arguments.only)
        kinds = [SIDES[name] for name in arguments.sides.split(",")]
        first, second = kinds
    except (KeyError, ValueError) as failure:
        print(f"bench/run: {failure}", file=sys.stderr)
        return 2
    for program in ("java", "mvn") if "kafka" in arguments.sides else ():
        if shutil.which(program) is None:
            print(f"bench/run: '{program}' is missing (Java 17 and Maven are needed)", file=sys.stderr)
            return 1
    raise_file_limit()
    names = [first.name, second.name]
    results: dict[str, Samples] = {}
    lines: list[Row] = []
    failed = False
    with ExitStack() as stack:
        context = Context(Load(), arguments.scale, stack)
        print(
            f"{os.cpu_count()} x {platform.machine()}, Python {platform.python_version()}, scale {arguments.scale:g}\n"
        )
        print(heading(names), flush=True)
        for scenario in scenarios:
            try:
                samples = run_scenario(scenario, context, (first, second), arguments.rounds or scenario.rounds)
            except RuntimeError as failure:
                print(f"{scenario.name} FAILED: {failure}", flush=True)
                failed = True
                continue
            results[scenario.name] = samples
            lines += rows(scenario, samples)
            # At once, line by line and into the file: a run that is interrupted has shown what it measured.
            print("\n".join(map(line, rows(scenario, samples))), flush=True)
            if arguments.json:
                Path(arguments.json).write_text(json.dumps(as_json(names, results, lines), indent=2) + "\n")
    return 1 if failed else 0


def as_json(names: Sequence[str], results: dict[str, Samples], lines: Sequence[Row]) -> dict[str, object]:
    """Everything that was measured, and the table."""
    return {
        "sides": list(names),
        "samples": {
            scenario: {
                name: [dataclasses.asdict(sample) for sample in samples]
                for name, samples in zip(("first", "second"), both.values(), strict=True)
            }
            for scenario, both in results.items()
        },
        "rows": [{**dataclasses.asdict(row), "ratio": row.ratio, "reached": row.reached} for row in lines],
    }


if __name__ == "__main__":
    sys.exit(main())
