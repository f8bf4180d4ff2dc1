"""Our codec against Kafka's generated classes: equal values and equal bytes, in both directions."""

from __future__ import annotations

import base64
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from protocol.errors import ApiError, EncodeError
from protocol.wire.schema import Message
from tests.kit.jars import java, kafka_classpath
from tests.protocol.values import EVERY_VERSION, MESSAGES, SeededSource, build, to_json

VALUES_PER_VERSION = 30
VALUES_PER_OTHER_VERSION = 6

pytestmark = pytest.mark.java


def ask_java(tasks: list[dict[str, Any]]) -> list[str]:
    """The answers of `MessageCodec.java`, one per task."""
    program = Path(__file__).with_name("java") / "MessageCodec.java"
    command = java("-Xmx512m", "-XX:+UseSerialGC", "-cp", kafka_classpath(), str(program))
    lines = "\n".join(json.dumps(task) for task in tasks) + "\n"
    done = subprocess.run(
        command, input=lines, capture_output=True, text=True, encoding="utf-8", timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()


def test_the_same_values_are_the_same_bytes() -> None:
    cases: list[tuple[Message, int]] = []
    for message, version in EVERY_VERSION:
        for index in range(VALUES_PER_VERSION):
            cases.append((build(message, version, SeededSource(f"{message.__name__} {version} {index}")), version))
    answers = ask_java(
        [
            {"message": type(value).__name__, "read": version, "write": version, "value": to_json(value, version)}
            for value, version in cases
        ]
    )
    differences = []
    for (value, version), answer in zip(cases, answers, strict=True):
        name = f"{type(value).__name__} v{version}"
        if answer.startswith("!"):
            differences.append(f"{name}: {answer}")
            continue
        theirs = base64.b64decode(answer)
        if value.to_bytes(version) != theirs:
            differences.append(f"{name}: {value} is {value.to_bytes(version).hex()}, theirs {theirs.hex()}")
        elif type(value).decode(memoryview(theirs), version) != value:
            differences.append(f"{name}: {theirs.hex()} does not decode to {value}")
    assert not differences, f"{len(differences)} of {len(cases)}, first {differences[0][:2000]}"


def test_what_a_version_cannot_carry_is_dropped_or_refused_alike() -> None:
    cases: list[tuple[Message, int]] = []
    for message in MESSAGES.values():
        for version in range(message.min_version, message.max_version):
            for index in range(VALUES_PER_OTHER_VERSION):
                seed = f"{message.__name__} {version} {index} from {message.max_version}"
                cases.append((build(message, message.max_version, SeededSource(seed)), version))
    answers = ask_java(
        [
            {
                "message": type(value).__name__,
                "read": value.max_version,
                "write": version,
                "value": to_json(value, value.max_version),
            }
            for value, version in cases
        ]
    )
    differences = []
    for (value, version), answer in zip(cases, answers, strict=True):
        try:
            ours = base64.b64encode(value.to_bytes(version)).decode()
        except ApiError as error:
            ours = f"!unsupported {error}"
        except EncodeError as error:
            ours = f"!java.lang.NullPointerException {error}"
        same = ours == answer or (answer[:1] == "!" and ours.split(" ")[0] == answer.split(" ")[0].rstrip(":"))
        if not same:
            differences.append(f"{type(value).__name__} v{version}: {value}: ours {ours}, theirs {answer}")
    assert not differences, f"{len(differences)} of {len(cases)}, first {differences[0][:2000]}"
