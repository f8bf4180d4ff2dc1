"""Error codes and API keys against Kafka's own enumerations."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from protocol.api_keys import ApiKey
from protocol.errors import ErrorCode
from tests.kit.jars import java, kafka_classpath


@pytest.mark.java
def test_error_codes_and_api_keys_are_kafkas() -> None:
    program = Path(__file__).with_name("java") / "Vocabulary.java"
    command = java("-cp", kafka_classpath(), str(program))
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    theirs = set(done.stdout.splitlines())
    ours = {f"error {code.name} {int(code)} {str(code.retriable).lower()}" for code in ErrorCode}
    for line in theirs:
        kind, name, key, *rows = line.split(" ")
        if kind == "api":
            versions = [int(row.partition(":")[0]) for row in rows]
            api = ApiKey[name]
            headers = [f" {v}:{api.request_header_version(v)}:{api.response_header_version(v)}" for v in versions]
            ours.add(f"api {name} {int(api)}{''.join(headers)}")
            assert str(int(api)) == key
    assert ours == theirs
    assert len(ApiKey) == sum(line.startswith("api") for line in theirs)
