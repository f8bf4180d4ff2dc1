"""Dockerfile and the compose files, as far as they can be checked without Docker: everything they name exists, and
matches.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from config.broker_config import BrokerConfig
from config.environment_variables import keys_of
from config.properties import parse_properties
from odradek.command_list import SERVER_SCRIPTS, tool_modules
from tests.packaging.compositions import (
    CLUSTER,
    DOCKERFILE,
    ROOT,
    SINGLE,
    brokers,
    composition,
    entry_point,
    environment,
    health_check,
    published,
    written_file,
)

IMAGE_FILE = "/etc/odradek/server.properties"
FILES = (CLUSTER, SINGLE)


@pytest.fixture(params=FILES)
def composed(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Each compose file."""
    return composition(request.param)


def image_config() -> BrokerConfig:
    """The default configuration of the broker's image."""
    return BrokerConfig.of(parse_properties(written_file(IMAGE_FILE)))


def test_the_image_is_a_broker_by_itself() -> None:
    config = image_config()
    assert config.unknown() + config.without_effect() == []
    assert [(each.listener_name, each.host, each.port) for each in config.listeners] == [
        ("INSIDE", "0.0.0.0", 9093),
        ("OUTSIDE", "0.0.0.0", 9092),
    ]
    assert f"VOLUME {config.log_dirs[0]}\n" in DOCKERFILE
    assert config.metrics_listener is not None
    exposed = re.search(r"EXPOSE (.*)", DOCKERFILE)
    assert exposed is not None
    metrics_port = config.metrics_listener.rpartition(":")[2]
    assert set(exposed[1].split()) == {*(str(each.port) for each in config.listeners), metrics_port}


def test_what_is_copied_and_run_exists() -> None:
    copied = re.findall(r"^COPY (requirements/\S+) ", DOCKERFILE, re.MULTILINE)
    assert copied == ["requirements/broker.txt", "requirements/spark.txt"]
    assert all((ROOT / name).exists() for name in copied)
    commands = [*SERVER_SCRIPTS, *tool_modules(ROOT)]
    assert entry_point("broker") == ["start-broker"]
    assert entry_point("spark") == ["odradek"]
    odradek, command, *_ = health_check()
    assert odradek == "odradek"
    assert {command, "server-start", "spark-lake"} <= set(commands)
    stages = re.findall(r"^FROM \S+ AS (\w+)$", DOCKERFILE, re.MULTILINE)
    targets = {
        each["build"]["target"] for name in FILES for each in composition(name)["services"].values() if "build" in each
    }
    assert targets <= set(stages)
    # `docker build` without a target builds the last stage.
    assert stages[-1] == "broker"


def test_the_image_is_compiled() -> None:
    """Its Python comes without compiled modules, and the user that runs the broker cannot write them."""
    installed, compiled = DOCKERFILE.index("pip install --no-cache-dir --no-deps"), DOCKERFILE.index("-m compileall")
    assert installed < compiled < DOCKERFILE.index("AS spark")
    assert "--no-compile" not in DOCKERFILE
    assert "PYTHONDONTWRITEBYTECODE" not in DOCKERFILE


def started(tmp_path: Path, *options: str) -> list[str]:
    """The command line that the image's entry point executes; a mounted file is looked up below `tmp_path`."""
    script = tmp_path / "start-broker"
    script.write_text(written_file("/usr/local/bin/start-broker").replace("/mnt", f"{tmp_path}/mnt"))
    odradek = tmp_path / "odradek"
    odradek.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    odradek.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    done = subprocess.run(["sh", str(script), *options], env={"PATH": path}, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_the_entry_point_reads_variables_and_a_mounted_file(tmp_path: Path) -> None:
    command = ["server-start", "--environment", IMAGE_FILE]
    assert started(tmp_path) == command
    assert started(tmp_path, "--override", "num.partitions=3") == [*command, "--override", "num.partitions=3"]
    mounted = tmp_path / "mnt" / "shared" / "config" / "server.properties"
    mounted.parent.mkdir(parents=True)
    mounted.touch()
    said = started(tmp_path, "--override", "num.partitions=3")
    assert said == [*command, str(mounted), "--override", "num.partitions=3"]


def test_brokers_advertise_what_is_published(composed: dict[str, Any]) -> None:
    """To containers they advertise the service's name, to the host an address that leads to the listener."""
    found = brokers(composed["services"])
    assert found
    metrics = image_config().metrics_listener
    assert metrics is not None
    for name, service in found.items():
        config = BrokerConfig.of(keys_of(environment(service)))
        assert config.unknown() + config.without_effect() == []
        inside, outside = config.advertised_listeners
        ports = {each.listener_name: each.port for each in config.listeners}
        assert config.inter_broker_listener_name == inside.listener_name
        assert (inside.host, inside.port) == (name, ports[inside.listener_name])
        assert published(service)[str(outside.host), outside.port] == ports[outside.listener_name]
        assert int(metrics.rpartition(":")[2]) in published(service).values()
        assert health_check()[-1] == f"127.0.0.1:{ports[outside.listener_name]}"
        assert all(volume.partition(":")[0] in composed["volumes"] for volume in service["volumes"])
        assert [volume.partition(":")[2] for volume in service["volumes"]] == list(image_config().log_dirs)


def test_the_brokers_of_the_cluster_are_different() -> None:
    services = composition(CLUSTER)["services"]
    found = brokers(services)
    configs = [BrokerConfig.of(keys_of(environment(service))) for service in found.values()]
    assert len(configs) == len({config.broker_id for config in configs}) == 3
    assert len({config.broker_rack for config in configs}) == 3
    assert len({volume for service in found.values() for volume in service["volumes"]}) == 3
    assert {config.default_replication_factor for config in configs} == {3}
    assert {config.min_insync_replicas for config in configs} == {2}
    assert {config.offsets_topic_replication_factor for config in configs} == {3}
    (address,) = {str(config.zookeeper_address) for config in configs}
    assert address == "zookeeper:2181/odradek"
    assert services["zookeeper"]["image"] == "zookeeper:3.9"
    for service in found.values():
        assert service["depends_on"] == {"zookeeper": {"condition": "service_healthy"}}


def test_one_broker_is_no_cluster() -> None:
    (service,) = brokers(composition(SINGLE)["services"]).values()
    config = BrokerConfig.of(keys_of(environment(service)))
    assert config.zookeeper_connect is None
    assert config.offsets_topic_replication_factor == 1


def test_a_job_that_has_ended_is_not_started_again(composed: dict[str, Any]) -> None:
    assert composed["services"]["lake"]["restart"] == "on-failure:5"


def test_the_job_is_one_that_the_job_understands(composed: dict[str, Any]) -> None:
    pytest.importorskip("pyspark")
    from spark_jobs.common.runner import build_parser
    from spark_jobs.jobs.lake import JOB

    job = composed["services"]["lake"]
    command, *words = job["command"]
    assert command == "spark-lake"
    options = build_parser(JOB).parse_args(words)
    assert (options.pattern, options.output, options.master) == (".*", "/lake/table", "local[2]")
    assert options.trigger == {"processingTime": "30 seconds"}
    names = brokers(composed["services"])
    assert options.bootstrap_servers == ",".join(f"{name}:9093" for name in names)
    assert job["depends_on"] == {name: {"condition": "service_healthy"} for name in names}
