"""Dockerfile and docker-compose.yml, as far as they can be checked without Docker: what they name exists."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from config.broker_config import BrokerConfig
from odradek.command_list import SERVER_SCRIPTS, tool_modules

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
COMPOSE = (ROOT / "docker-compose.yml").read_text()


@pytest.fixture
def config(tmp_path: Path) -> BrokerConfig:
    """The configuration that the broker's image starts with."""
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
    assert 'ENTRYPOINT ["start-broker"]' in DOCKERFILE
    health = re.search(r'HEALTHCHECK .* CMD \["odradek", "(\w+)", "--bootstrap-server", "127.0.0.1:9092"\]', DOCKERFILE)
    assert health is not None
    assert health[1] in commands
    assert {"server-start", "spark-lake"} <= set(commands)
    stages = re.findall(r"^FROM \S+ AS (\w+)$", DOCKERFILE, re.MULTILINE)
    assert set(re.findall(r"target: (\w+)", COMPOSE)) <= set(stages)
    # `docker build` without a target takes the last stage.
    assert stages[-1] == "broker"


def test_the_image_is_compiled() -> None:
    """Its Python comes without compiled modules, and the user who runs the broker cannot write them."""
    installed, compiled = DOCKERFILE.index("pip install --no-cache-dir --no-deps"), DOCKERFILE.index("-m compileall")
    assert installed < compiled < DOCKERFILE.index("AS spark")
    assert "--no-compile" not in DOCKERFILE
    assert "PYTHONDONTWRITEBYTECODE" not in DOCKERFILE


def start_broker(tmp_path: Path, *options: str, **environment: str) -> list[str]:
    """The command line that the image's entry point ends in."""
    text = re.search(r"(?ms)^COPY --chmod=755 <<'START' /usr/local/bin/start-broker\n(.*?)^START$", DOCKERFILE)
    assert text is not None
    script = tmp_path / "start-broker"
    script.write_text(text[1])
    odradek = tmp_path / "odradek"
    odradek.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    odradek.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    done = subprocess.run(
        ["sh", str(script), *options], env={**environment, "PATH": path}, capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


def test_the_entry_point_takes_advertised_listeners_from_the_environment(tmp_path: Path) -> None:
    assert start_broker(tmp_path) == ["server-start", "/etc/odradek/server.properties"]
    said = start_broker(tmp_path, "--override", "num.partitions=3", KAFKA_ADVERTISED_LISTENERS="OUTSIDE://h:9092")
    assert said[2:] == ["--override", "advertised.listeners=OUTSIDE://h:9092", "--override", "num.partitions=3"]


def test_the_composition_advertises_what_it_publishes(config: BrokerConfig) -> None:
    advertised = re.search(r"KAFKA_ADVERTISED_LISTENERS: (.*)", COMPOSE)
    assert advertised is not None
    text = re.sub(r"\$\{\w+:-(.*?)\}", r"\1", advertised[1])
    assert text == ",".join(map(str, config.advertised_listeners))
    assert config.metrics_listener is not None
    metrics_port = config.metrics_listener.rpartition(":")[2]
    assert f'"127.0.0.1:{metrics_port}:{metrics_port}"' in COMPOSE
    exposed = re.search(r"EXPOSE (.*)", DOCKERFILE)
    assert exposed is not None
    assert set(exposed[1].split()) == {*(str(each.port) for each in config.listeners), metrics_port}


def test_a_job_that_has_ended_is_not_started_again() -> None:
    job = COMPOSE[COMPOSE.index("  lake:\n") :]
    assert "restart: on-failure:5\n" in job
    assert "unless-stopped" not in job


def test_the_job_of_the_composition_is_one_that_the_job_understands() -> None:
    pytest.importorskip("pyspark")
    from spark_jobs.jobs.lake import build_parser

    command = COMPOSE[COMPOSE.index("- spark-lake\n") :].split("\n\n")[0]
    words = [shlex.split(line.strip(" -"))[0] for line in re.sub(r"\$\{\w+:-(.*?)\}", r"\1", command).splitlines()]
    options = build_parser().parse_args([f"--{word}" for word in words[1:]])
    assert (options.pattern, options.output, options.master) == (".*", "/lake/table", "local[2]")
    assert options.trigger == {"processingTime": "30 seconds"}
