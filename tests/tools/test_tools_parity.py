"""The same command lines for Kafka's tools and for ours, against Apache Kafka and against our broker: the same output.

The command lines are in `cases/`; both sides run a case at once, each on separate topics and groups. Standard output,
except for ids and times, and the exit code must be equal.
"""

from __future__ import annotations

import json
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.kit.jars import java, kafka_classpath
from tests.tools.tool_pair import CLASSES, JVM, Runner, comparable, play, read_case

CASES = Path(__file__).with_name("cases")

pytestmark = [pytest.mark.java, pytest.mark.timeout(180)]


@pytest.mark.parametrize("case", sorted(path.stem for path in CASES.glob("*.txt")))
def test_both_say_the_same(
    case: str, address: str, kafkas: Runner, ours: Runner, files: Path, request: pytest.FixtureRequest
) -> None:
    if case == "groups":
        request.getfixturevalue("active_group")
    steps = read_case((CASES / f"{case}.txt").read_text())
    differences = []
    # Step by step: what one side lists (groups with members, say) must not depend on the other's progress.
    with ThreadPoolExecutor(2) as sides:
        for step in steps:
            theirs, mine = sides.map(lambda runner, step=step: play(runner, step, address, files), (kafkas, ours))
            expected, actual = comparable(theirs, step, kafkas.side), comparable(mine, step, ours.side)
            if step.compare == "shared":
                expected, actual = in_both(expected, actual), in_both(actual, expected)
            if expected != actual:
                differences.append(f"{step.line}\n  Kafka's: {expected}\n  ours:    {actual}\n  {mine.stderr[-1500:]}")
    assert not differences, f"{len(differences)} of {len(steps)} differ:\n" + "\n".join(differences)


def in_both(answer: tuple[int, list[str]], other: tuple[int, list[str]]) -> tuple[int, list[str]]:
    """The lines whose first words the other answer has, too: Kafka's broker creates loggers on first use."""
    code, lines = answer
    names = {line.strip().partition("=")[0] for line in other[1]}
    shared = [line for line in lines if line.strip().partition("=")[0] in names]
    assert len(shared) >= len(lines) * 0.9, (lines, other)
    return code, shared


def shape(text: str) -> str:
    """The perf tools' lines with every number replaced.

    Progress lines are omitted: they only appear if it takes longer than 5 s.
    """
    lines = [line for line in text.splitlines() if not line.endswith(" ms max latency.")]
    return re.sub(r"-?\d+", "0", "\n".join(lines))


def test_performance_lines_have_the_same_shape(address: str, kafkas: Runner, ours: Runner, tmp_path: Path) -> None:
    payloads = tmp_path / "payloads"
    payloads.write_text("one\ntwo\nthree\n")
    for runner in (kafkas, ours):
        topic = f"{runner.side}-perf"
        runner.run("topics", [f"--bootstrap-server={address}", "--create", "--topic", topic, "--partitions", "2"])
    load = f"--producer-props bootstrap.servers={address}"
    transactional = "--transaction-duration-ms 50 --transactional-id perf-SIDE"
    produce = [
        f"--num-records 20000 --record-size 100 --throughput -1 {load}",
        f"--num-records 20 --payload-monotonic --throughput 1000 {load} acks=1 compression.type=lz4",
        f"--num-records 20 --payload-file {payloads} --throughput 1000 {load}",
        f"--num-records 20 --payload-monotonic --throughput 100 {load} {transactional}",
    ]
    for options in produce:
        said = [
            runner.run(
                "producer_perf_test", ["--topic", f"{runner.side}-perf", *options.replace("SIDE", runner.side).split()]
            )
            for runner in (kafkas, ours)
        ]
        assert [answer.code for answer in said] == [0, 0], said
        assert shape(said[0].stdout) == shape(said[1].stdout)
    for options in ("", " --hide-header --date-format HH:mm"):
        said = [
            runner.run(
                "consumer_perf_test",
                [
                    *(f"--bootstrap-server={address}", "--topic", f"{runner.side}-perf"),
                    *f"--messages 20060 --timeout 20000{options}".split(),
                ],
            )
            for runner in (kafkas, ours)
        ]
        assert [answer.code for answer in said] == [0, 0], said
        assert shape(said[0].stdout) == shape(said[1].stdout)
        counts = [answer.stdout.splitlines()[-1].split(", ")[4] for answer in said]
        assert counts == ["20060", "20060"]
    partial = [
        runner.run(
            "consumer_perf_test",
            [
                *(f"--bootstrap-server={address}", "--topic", f"{runner.side}-perf"),
                *("--messages", "30000", "--timeout", "500"),
                *("--show-detailed-stats", "--reporting-interval", "3600000"),
            ],
        )
        for runner in (kafkas, ours)
    ]
    assert shape(partial[0].stdout) == shape(partial[1].stdout)


def events(text: str) -> list[dict[str, object]]:
    """Lines of JSON, without the parts that differ between runs."""
    found = [json.loads(line) for line in text.splitlines()]
    for event in found:
        assert abs(event.pop("timestamp") - 1.8e12) < 1e12
        event.pop("avg_throughput", None)
    return sorted(found, key=lambda event: json.dumps(event, sort_keys=True))


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("verifiable_producer", "--topic SIDE-v --max-messages 5 --value-prefix 7 --repeating-keys 2"),
        ("verifiable_producer", "--topic SIDE/v --max-messages 1"),
        ("verifiable_consumer", "--topic SIDE-v --group-id SIDE-vg --max-messages 5 --verbose"),
    ],
)
def test_verifiable_tools(tool: str, arguments: str, address: str, kafkas: Runner, ours: Runner) -> None:
    # Alone in its JVM: Kafka's tool prints its last lines while the JVM shuts down.
    server = ["--bootstrap-server", address]
    command = java(*JVM, "-cp", kafka_classpath(), CLASSES[tool], *server)
    theirs = subprocess.run(
        command + arguments.replace("SIDE", "k").split(), capture_output=True, text=True, timeout=60, check=False
    )
    mine = ours.run(tool, server + arguments.replace("SIDE", "o").split())
    assert mine.code == theirs.returncode, mine.stderr
    assert events(mine.stdout.replace("o-v", "k-v").replace("o/v", "k/v")) == events(theirs.stdout)
