"""Dockerfile and docker-compose.yml, as far as they can be checked without Docker: what they name exists."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from config.broker_config import BrokerConfig
from odradek.cli import SERVER_SCRIPTS, tool_modules

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
COMPOSE = (ROOT / "docker-compose.yml").read_text()


@pytest.fixture
def config(tmp_path: Path) -> BrokerConfig:
    """What the image of the broker starts with."""
    text = re.search(r"(?ms)^COPY <<'PROPERTIES' /etc/odradek/server.properties\n(.*?)^PROPERTIES$", DOCKERFILE)
    assert text is not None
    path = tmp_path / "server.properties"
    path.write_text(text[1])
    return BrokerConfig.load(path)


def test_the_broker_of_the_image_listens_inside_and_outside(config: BrokerConfig) -> None:
    assert config.unknown() + config.without_effect() == []
    assert [(each.listener_name, each.host, each.port) for each in config.listeners] == [
        ("INSIDE", "0.0.0.0", 9093),
        ("OUTSIDE", "0.0.0.0", 9092),
    ]
    inside, outside = config.advertised_listeners
    assert f"--bootstrap-servers={inside.host}:{inside.port}" in COMPOSE
    assert f'"{outside.host}:{outside.port}:9092"' in COMPOSE
    assert f'["{config.log_dirs[0]}"]' in DOCKERFILE or f"VOLUME {config.log_dirs[0]}\n" in DOCKERFILE
    assert f":{config.log_dirs[0]}" in COMPOSE


def test_what_is_copied_and_run_exists() -> None:
    copied = re.findall(r"^COPY (requirements/\S+) ", DOCKERFILE, re.MULTILINE)
    assert copied == ["requirements/broker.txt", "requirements/spark.txt"]
    assert all((ROOT / name).exists() for name in copied)
    commands = [*SERVER_SCRIPTS, *tool_modules(ROOT)]
    assert '["odradek", "server-start", "/etc/odradek/server.properties"]' in DOCKERFILE
    assert {"server-start", "spark-lake"} <= set(commands)
    stages = re.findall(r"^FROM \S+ AS (\w+)$", DOCKERFILE, re.MULTILINE)
    assert set(re.findall(r"target: (\w+)", COMPOSE)) <= set(stages)
    # `docker build` without a target takes the last stage.
    assert stages[-1] == "broker"


def test_the_job_of_the_composition_is_one_that_the_job_understands() -> None:
    pytest.importorskip("pyspark")
    from spark_jobs.jobs.lake import build_parser

    command = COMPOSE[COMPOSE.index("- spark-lake\n") :].split("\n\n")[0]
    words = [shlex.split(line.strip(" -"))[0] for line in re.sub(r"\$\{\w+:-(.*?)\}", r"\1", command).splitlines()]
    options = build_parser().parse_args([f"--{word}" for word in words[1:]])
    assert (options.pattern, options.output, options.master) == (".*", "/lake/table", "local[2]")
    assert options.trigger == {"processingTime": "30 seconds"}
