"""The command behind bench/run."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import resource
import secrets
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from fnmatch import fnmatchcase
from itertools import chain
from pathlib import Path

from bench import cluster_scenarios, coordinator_scenarios, scenarios, spark_scenarios, waits
from bench.brokers import Side, side
from bench.clusters import Cluster
from bench.load import Load
from bench.report import MOST_SPENT, Row, Samples, heading, line, noise_of_the_machine, rows, worse
from bench.scenario import Context, Sample, Scenario
from bench.scenarios import READY_TOPIC
from bench.security import access_scenarios, tls_scenarios

SCENARIOS = [
    *scenarios.SCENARIOS,
    *coordinator_scenarios.SCENARIOS,
    *spark_scenarios.SCENARIOS,
    *cluster_scenarios.SCENARIOS,
    *tls_scenarios.SCENARIOS,
    *access_scenarios.SCENARIOS,
    *waits.SCENARIOS,
]
SIDES = ("first", "second", "second again")
SETTLE_S = 3
"""Seconds of quiet between a broker's start and its load, the same for both sides."""


def build_parser() -> argparse.ArgumentParser:
    """The parser of the options."""
    parser = argparse.ArgumentParser(prog="bench/run", description="Apache Kafka and Odradek side by side.")
    names = ", ".join(scenario.name for scenario in SCENARIOS)
    parser.add_argument("--only", metavar="NAME,...", help=f"or patterns ('wait-*'), of: {names}")
    parser.add_argument("--rounds", type=int, help="samples of each side (default: as each scenario says)")
    parser.add_argument("--scale", type=float, default=1.0, help="shorter loads, for a look: 0.1 (default: 1)")
    parser.add_argument("--json", metavar="FILE", help="write every sample and the table's rows there, too")
    parser.add_argument(
        "--sides",
        default="kafka,odradek",
        metavar="A,B",
        help="the two to compare: kafka, odradek, or the path of a checkout (two states of the code, with targets for "
        "what must not get worse). The same one twice shows the noise of the machine: kafka,kafka or odradek,odradek",
    )
    parser.add_argument(
        "--noise", action="store_true", help="measure B twice, and print the ratio of the two in a column of its own"
    )
    return parser


def select(only: str | None) -> list[Scenario]:
    """The named scenarios, in their usual order; raises ValueError naming unknown ones."""
    if only is None:
        return SCENARIOS
    patterns = [name.strip() for name in only.split(",")]
    unknown = [each for each in patterns if not any(fnmatchcase(scenario.name, each) for scenario in SCENARIOS)]
    if unknown:
        raise ValueError(f"--only {','.join(unknown)}: no such scenario")
    return [scenario for scenario in SCENARIOS if any(fnmatchcase(scenario.name, each) for each in patterns)]


def unworsened(scenario: Scenario) -> Scenario:
    """The scenario with the targets for comparing two states of the code: the second must not be worse."""
    worst = 0.97 if scenario.higher_is_better else 1.1 if scenario.unit == "ms" else MOST_SPENT
    limit = scenario.limit if scenario.either else None
    details = dict.fromkeys(scenario.detail_targets, 1.1)
    return dataclasses.replace(
        scenario,
        target=worst,
        cpu_target=MOST_SPENT,
        limit=limit,
        detail_targets=details,
        detail_limits={},
        compares_states=True,
    )


def settle() -> None:
    """Let the disk finish the writes of the previous sample: they would slow down a broker that starts fast."""
    os.sync()
    time.sleep(SETTLE_S)


def take_sample(scenario: Scenario, context: Context, kind: Side) -> Sample:
    """One sample of one side, on a separate broker; with `also_warm`, also later samples on the same broker."""

    def measure() -> Sample:
        return scenario.measure(context, broker, f"bench-{scenario.name}-{secrets.token_hex(6)}")

    broker = kind.make() if scenario.brokers == 1 else Cluster(kind.make, scenario.brokers)
    broker.environment, broker.settings = scenario.environment, scenario.settings
    try:
        if scenario.prepare is not None:
            scenario.prepare(broker)
        if scenario.launches:
            broker.prepare()
        else:
            broker.start()
            # An open port does not mean that the broker leads partitions: Kafka still refuses new topics for a moment.
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


def run_scenario(scenario: Scenario, context: Context, kinds: Sequence[Side], rounds: int) -> Samples:
    """`rounds` samples of each side, in turns: the last side of a round goes first in the next."""
    taken: list[list[Sample]] = [[] for _ in kinds]
    for round_number in range(rounds):
        for index in range(len(kinds)) if round_number % 2 == 0 else reversed(range(len(kinds))):
            sample = take_sample(scenario, context, kinds[index])
            taken[index].append(sample)
            said = f"{kinds[index].name}: {sample.value:,.2f} {scenario.unit}"
            print(f"  {scenario.name} {said}", file=sys.stderr, flush=True)
    return dict(zip(SIDES, taken, strict=False))


def raise_file_limit() -> None:
    """Raise the limit of open files to the maximum: 10,000 partitions need more than the usual 1,024."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the scenarios and print the table; 0 if every one gave a figure, even if it missed its target."""
    arguments = build_parser().parse_args(argv)
    try:
        chosen = select(arguments.only)
        first, second = (side(name) for name in arguments.sides.split(","))
    except ValueError as failure:
        print(f"bench/run: {failure}", file=sys.stderr)
        return 2
    has_kafka = first.is_kafka or second.is_kafka
    for program in ("java", "mvn") if has_kafka else ():
        if shutil.which(program) is None:
            print(f"bench/run: '{program}' is missing (Java 17 and Maven are needed)", file=sys.stderr)
            return 1
    raise_file_limit()
    names = [first.name, second.name]
    kinds = (first, second, second) if arguments.noise else (first, second)
    results: dict[str, Samples] = {}
    lines: dict[str, list[Row]] = {}
    failed = False
    with ExitStack() as stack:
        context = Context(Load(), arguments.scale, stack)
        print(
            f"{os.cpu_count()} x {platform.machine()}, Python {platform.python_version()}, scale {arguments.scale:g}\n"
        )
        print(heading(names, noise=arguments.noise), flush=True)
        for scenario in chosen if has_kafka else map(unworsened, chosen):
            try:
                samples = run_scenario(scenario, context, kinds, arguments.rounds or scenario.rounds)
            except RuntimeError as failure:
                print(f"{scenario.name} FAILED: {failure}", flush=True)
                failed = True
                continue
            results[scenario.name] = samples
            lines[scenario.name] = rows(scenario, samples)
            # Print and save each line at once: an interrupted run has shown its measurements so far.
            print("\n".join(map(line, lines[scenario.name])), flush=True)
            if arguments.json:
                Path(arguments.json).write_text(json.dumps(as_json(names, results, lines), indent=2) + "\n")
    same = first == second
    if same or arguments.noise:
        print(f"\n{noise_of_the_machine(list(chain(*lines.values())), of_ratios=same)}")
    if not has_kafka and not same:
        print(f"\n{worse(lines)}")
    return 1 if failed else 0


def as_json(names: Sequence[str], results: dict[str, Samples], lines: Mapping[str, Sequence[Row]]) -> dict[str, object]:
    """All measurements, and the table."""
    return {
        "sides": list(names),
        "samples": {
            scenario: {name: [dataclasses.asdict(sample) for sample in samples] for name, samples in both.items()}
            for scenario, both in results.items()
        },
        "rows": [
            {**dataclasses.asdict(row), "ratio": row.ratio, "reached": row.reached} for row in chain(*lines.values())
        ],
    }


if __name__ == "__main__":
    sys.exit(main())
