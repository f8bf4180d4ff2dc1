"""A Kafka tool and ours under one name: how to run each, and which parts of their output must match."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from tests.kit.jars import java, kafka_classpath

ROOT = Path(__file__).resolve().parents[2]
JVM = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
TIMEOUT_MS = 60_000
HOSTS = {"k": "10.0.0.1", "o": "10.0.0.2"}

CLASSES = {
    "acls": "kafka.admin.AclCommand",
    "broker_api_versions": "kafka.admin.BrokerApiVersionsCommand",
    "cluster": "org.apache.kafka.tools.ClusterTool",
    "configs": "kafka.admin.ConfigCommand",
    "console_consumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "console_producer": "kafka.tools.ConsoleProducer",
    "consumer_groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "consumer_perf_test": "org.apache.kafka.tools.ConsumerPerformance",
    "delegation_tokens": "org.apache.kafka.tools.DelegationTokenCommand",
    "delete_records": "org.apache.kafka.tools.DeleteRecordsCommand",
    "e2e_latency": "org.apache.kafka.tools.EndToEndLatency",
    "get_offsets": "org.apache.kafka.tools.GetOffsetShell",
    "leader_election": "org.apache.kafka.tools.LeaderElectionCommand",
    "log_dirs": "org.apache.kafka.tools.LogDirsCommand",
    "producer_perf_test": "org.apache.kafka.tools.ProducerPerformance",
    "reassign_partitions": "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
    "topics": "org.apache.kafka.tools.TopicCommand",
    "transactions": "org.apache.kafka.tools.TransactionsCommand",
    "verifiable_consumer": "org.apache.kafka.tools.VerifiableConsumer",
    "verifiable_producer": "org.apache.kafka.tools.VerifiableProducer",
}


class Answer(NamedTuple):
    """How a tool ended; `code` is None if it timed out."""

    code: int | None
    stdout: str
    stderr: str


JAVA_STACK = re.compile(
    r"\s+at |Caused by: |\s+\.\.\. \d+ more|\s*Suppressed: |[a-z][\w.]+\.[A-Z]\w+(Exception|Error)(: |$)"
)


def lines_of(answer: Answer) -> list[str]:
    """The lines of standard output, without the Java stacks and the empty line that ends one."""
    return [line.rstrip() for line in answer.stdout.rstrip().splitlines() if not JAVA_STACK.match(line)]


class Runner:
    """A process that runs tools one after the other. Names of topics and groups begin with the letter `side`."""

    def __init__(self, side: str, command: list[str]) -> None:
        self.side = side
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8", env=environment
        )

    def run(self, tool: str, args: list[str], stdin: str = "") -> Answer:
        """Run a tool, by the name of our module."""
        command = {"tool": tool, "class": CLASSES[tool], "args": args, "stdin": stdin, "timeout_ms": TIMEOUT_MS}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return Answer(answer["code"], answer["stdout"], answer["stderr"])

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(20)
        self._process.stdout.close()


def kafkas_runner(directory: Path) -> Runner:
    """Run Kafka's tools, all in one JVM."""
    log4j = directory / "log4j.properties"
    log4j.write_text(
        "log4j.rootLogger=ERROR, stderr\nlog4j.appender.stderr=org.apache.log4j.ConsoleAppender\n"
        "log4j.appender.stderr.Target=System.err\nlog4j.appender.stderr.layout=org.apache.log4j.SimpleLayout\n"
    )
    program = Path(__file__).with_name("java") / "ToolRunner.java"
    return Runner("k", java(*JVM, "-cp", kafka_classpath(), f"-Dlog4j.configuration=file:{log4j}", str(program)))


def our_runner() -> Runner:
    """Runs our tools."""
    return Runner("o", [sys.executable, "-P", "-m", "tests.tools.tool_server"])


class Step(NamedTuple):
    """One command line, written as `tool args`; ADDRESS, SIDE and HOST in it stand for the broker, the tool's letter
    and a separate address.

    `compare` says how: "text" line for line; "lines" without order; "words" without order and line ends, for rows that
    Kafka 3.9.1 prints without line ends; "own" only lines with names of this side; "shared" only `name=...` lines whose
    name both sides have.
    """

    line: str
    stdin: str = ""
    compare: str = "text"


def read_case(text: str) -> list[Step]:
    """Steps, one a line: `[how:] tool args [<<< standard input with backslash escapes]`; `#` begins a comment."""
    steps = []
    for raw in text.splitlines():
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        compare = "text"
        if match := re.match(r"(lines|words|own|shared): ", line):
            compare = match[1]
            line = line[match.end() :]
        line, _, given = line.partition(" <<< ")
        steps.append(Step(line, given.encode().decode("unicode_escape"), compare))
    return steps


def play(runner: Runner, step: Step, address: str, directory: Path) -> Answer:
    """Run one step on one side."""
    words = shlex.split(step.line)
    replaced = [
        word.replace("AT", f"--bootstrap-server={address}") if word == "AT" else
        word.replace("ADDRESS", address).replace("SIDE", runner.side)
        .replace("HOST", HOSTS[runner.side]).replace("FILES", str(directory))
        for word in words
    ]  # fmt: skip
    return runner.run(replaced[0], replaced[1:], step.stdin)


_MASKS = (
    (re.compile(r"TopicId: \S{22}"), "TopicId: <id>"),
    (re.compile(r"(CreateTime:|commitTimestamp[\":=]+)\d{13}"), r"\1<time>"),
    (re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"), "<uuid>"),
)


def comparable(answer: Answer, step: Step, side: str) -> Any:
    """The outputs that must be equal on both sides."""
    text = answer.stdout
    for pattern, replacement in _MASKS:
        text = pattern.sub(replacement, text)
    lines = [line.rstrip() for line in text.splitlines()]
    if step.compare == "own":
        lines = [line for line in lines if side in re.findall(r"\b([ko])-", line)]
    text = re.sub(rf"\b{side}([-/])", r"<side>\1", "\n".join(lines)).strip("\n").replace(HOSTS[side], "<host>")
    if step.compare == "words":
        return answer.code, sorted(text.split())
    if step.compare in {"lines", "own"}:
        return answer.code, sorted(line for line in text.splitlines() if line)
    return answer.code, text.splitlines()
