"""The shapes of what Kafka's performance and verifiable tools print, and how to run those tools themselves."""

from __future__ import annotations

import json
import re
import subprocess
from typing import Any

from tests.jars import kafka_classpath

_F1, _F2, _F6, _F4 = (rf"(?:\d+\.\d{{{digits}}}|NaN)" for digits in (1, 2, 6, 4))
PRODUCER_TOTAL = re.compile(
    rf"(\d+) records sent, {_F6} records/sec \({_F2} MB/sec\), {_F2} ms avg latency, {_F2} ms max latency, "
    r"\d+ ms 50th, \d+ ms 95th, \d+ ms 99th, \d+ ms 99\.9th\."
)
PRODUCER_WINDOW = re.compile(
    rf"(\d+) records sent, {_F1} records/sec \({_F2} MB/sec\), {_F1} ms avg latency, {_F1} ms max latency\."
)
_DATE = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d:\d{3}"
_RATES = rf"{_F4}, {_F4}, (\d+), {_F4}, -?\d+, -?\d+, {_F4}, {_F4}"
CONSUMER_TOTAL = re.compile(rf"{_DATE}, {_DATE}, {_RATES}")
CONSUMER_PROGRESS = re.compile(rf"{_DATE}, 0, {_RATES}")


def run_java(name: str, *arguments: str, code: int = 0) -> str:
    """Standard output of the tool in Kafka's class `org.apache.kafka.tools.NAME`, which must end with `code`."""
    command = ["java", "-Xmx256M", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", kafka_classpath()]
    done = subprocess.run(
        [*command, f"org.apache.kafka.tools.{name}", *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def events(output: str) -> list[dict[str, Any]]:
    """The events in the output of a verifiable tool, with their fields in order."""
    return [json.loads(line) for line in output.splitlines()]


def timeless(output: str) -> list[str]:
    """The lines of a verifiable tool without what differs from run to run."""
    text = re.sub(r'"timestamp":\d+', '"timestamp":T', output)
    return re.sub(r'"avg_throughput":[0-9.E-]+', '"avg_throughput":A', text).splitlines()
