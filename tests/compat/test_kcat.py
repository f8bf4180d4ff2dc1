"""The distribution's kcat, which uses an older librdkafka."""

from __future__ import annotations

import json
import subprocess

import pytest

from tests.kit.broker_process import BrokerProcess
from tests.kit.jars import require

TIMEOUT_S = 60


@pytest.fixture(autouse=True)
def _kcat_is_installed() -> None:
    require("kcat")


def kcat(broker: BrokerProcess, *arguments: str, given: str = "") -> str:
    """The output of `kcat`. Fails if kcat does."""
    done = subprocess.run(
        ["kcat", "-m", str(TIMEOUT_S), "-b", broker.address, *arguments],
        input=given,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_metadata(broker: BrokerProcess, topic: str) -> None:
    kcat(broker, "-P", "-t", topic, given="a line\n")
    found = json.loads(kcat(broker, "-L", "-J"))
    assert [each["name"] for each in found["brokers"]] == [broker.address]
    assert topic in {each["topic"] for each in found["topics"]}
    (only,) = json.loads(kcat(broker, "-L", "-J", "-t", topic))["topics"]
    assert [each["partition"] for each in only["partitions"]] == [0]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_round_trip(broker: BrokerProcess, topic: str, codec: str) -> None:
    lines = [f"key {n}:value {n} of a batch that can be compressed" for n in range(500)]
    given = "\n".join(lines) + "\n"
    kcat(broker, "-P", "-t", topic, "-K:", "-z", codec, "-H", "name=header value", given=given)
    out = kcat(broker, "-C", "-t", topic, "-e", "-q", "-o", "beginning", "-f", "%o|%h|%k:%s\n")
    assert out.splitlines() == [f"{offset}|name=header value|{line}" for offset, line in enumerate(lines)]


def test_null_values(broker: BrokerProcess, topic: str) -> None:
    kcat(broker, "-P", "-t", topic, "-K:", "-Z", given="tombstone:\n")
    (record,) = kcat(broker, "-C", "-t", topic, "-e", "-q", "-J").splitlines()
    assert json.loads(record)["payload"] is None
    assert json.loads(record)["key"] == "tombstone"


def test_offsets(broker: BrokerProcess, topic: str) -> None:
    kcat(broker, "-P", "-t", topic, given="".join(f"{n}\n" for n in range(10)))
    assert kcat(broker, "-C", "-t", topic, "-e", "-q", "-o", "7").split() == ["7", "8", "9"]
    assert kcat(broker, "-C", "-t", topic, "-e", "-q", "-o", "-2").split() == ["8", "9"]
    assert kcat(broker, "-C", "-t", topic, "-e", "-q", "-o", "end") == ""
    assert kcat(broker, "-Q", "-t", f"{topic}:0:-1").split()[-1] == "10"
    assert kcat(broker, "-C", "-t", topic, "-q", "-o", "s@0", "-c", "3").split() == ["0", "1", "2"]


def test_a_balanced_consumer(broker: BrokerProcess, topic: str) -> None:
    kcat(broker, "-P", "-t", topic, given="".join(f"{n}\n" for n in range(100)))
    options = ["-X", "auto.offset.reset=earliest", "-q", "-c", "60", "-G", f"group-of-{topic}", topic]
    assert kcat(broker, *options).split() == [str(n) for n in range(60)]
    # The next consumer continues at the offset committed on close.
    options[options.index("60")] = "40"
    assert kcat(broker, *options).split() == [str(n) for n in range(60, 100)]
