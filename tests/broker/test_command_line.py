"""The arguments of the broker's process."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from broker.command_line import (
    BrokerArguments,
    CommandLineError,
    announcement,
    free_port,
    help_text,
    parse_arguments,
    properties_file,
    read_configuration,
    set_logger_levels,
    start_failure,
)
from config.broker_config import BrokerConfig
from config.definitions import ConfigErrors
from environment.logging_setup import LoggerLevels


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["s.properties"], BrokerArguments("s.properties", {})),
        (["s.properties", "--override", "a=b=c"], BrokerArguments("s.properties", {"a": "b=c"})),
        (["s.properties", "--override=a=b"], BrokerArguments("s.properties", {"a": "b"})),
        (["--dev"], BrokerArguments(None, {})),
        (["--dev", "--override", "num.partitions=3"], BrokerArguments(None, {"num.partitions": "3"})),
        (["--environment", "d.properties"], BrokerArguments(None, {}, "d.properties")),
        (["--environment", "d.properties", "s.properties"], BrokerArguments("s.properties", {}, "d.properties")),
    ],
)
def test_arguments(words: list[str], expected: BrokerArguments) -> None:
    assert parse_arguments(words) == expected


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "USAGE"),
        (["--what"], "Found non argument parameters: --what"),
        (["a", "b"], "Found non argument parameters: b"),
        (["a", "--override"], "Found non argument parameters: --override"),
        (["a", "--override", "novalue"], "Invalid command line property: novalue"),
        (["a", "--dev"], "--dev takes no file"),
        (["--environment", "a", "--dev"], "--dev takes no file; give a"),
        (["--environment"], "Found non argument parameters: --environment"),
    ],
)
def test_mistakes(words: list[str], message: str) -> None:
    with pytest.raises(CommandLineError, match=message):
        parse_arguments(words)


def test_usage_names_the_command_that_was_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ODRADEK_COMMAND", "odradek server-start")
    assert help_text().startswith("USAGE: odradek server-start [-daemon] (server.properties | --dev)")


def test_a_development_broker_uses_the_usual_ports_or_free_ones() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert free_port(port) not in {0, port}
    assert free_port(port) == port


def test_a_development_broker_leaves_nothing_behind() -> None:
    with properties_file(BrokerArguments(None, {})) as path:
        config = BrokerConfig.load(path, {"num.partitions": "3"})
        assert Path(config.log_dirs[0]).parent == Path(path).parent
        text = announcement(config)
        assert f"127.0.0.1:{config.listeners[0].port}" in text
        assert f"http://{config.metrics_listener}/metrics" in text
        assert config.log_dirs[0] in text
        assert config.unknown() + config.without_effect() == []
    assert not Path(path).parent.exists()


def test_a_file_that_cannot_be_read_is_named() -> None:
    error = FileNotFoundError(2, "No such file or directory", "s.properties")
    assert start_failure("s.properties", error) == "cannot read s.properties: No such file or directory"


@pytest.fixture
def defaults(tmp_path: Path) -> Path:
    """A container's default configuration."""
    path = tmp_path / "defaults.properties"
    path.write_text("broker.id=0\nlog.dirs=/data\nmetrics.listener=:9308\noffsets.topic.replication.factor=1\n")
    return path


def test_variables_take_the_place_of_defaults_but_for_places(defaults: Path) -> None:
    arguments = BrokerArguments(None, {"num.partitions": "5"}, str(defaults))
    config = read_configuration(arguments, str(defaults), {"KAFKA_HEAP_OPTS": "-Xmx1G"})
    assert (config.broker_id, config.offsets_topic_replication_factor, config.num_partitions) == (0, 1, 5)
    named = {"KAFKA_BROKER_ID": "2", "KAFKA_NUM_PARTITIONS": "4"}
    config = read_configuration(arguments, str(defaults), named)
    assert (config.broker_id, config.offsets_topic_replication_factor, config.num_partitions) == (2, 3, 5)
    assert (config.log_dirs, config.metrics_listener) == (("/data",), ":9308")
    config = read_configuration(arguments, str(defaults), {**named, "KAFKA_LOG_DIRS": "/elsewhere"})
    assert config.log_dirs == ("/elsewhere",)


def test_variables_win_over_a_file(defaults: Path, tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_text("broker.id=3\nlog.dirs=/own\nnum.io.threads=2\n")
    variables = {"KAFKA_BROKER_ID": "2"}
    config = read_configuration(BrokerArguments(str(path), {}, str(defaults)), str(path), variables)
    assert (config.broker_id, config.log_dirs, config.num_io_threads) == (2, ("/own",), 2)
    assert config.metrics_listener is None
    config = read_configuration(BrokerArguments(str(path), {}), str(path), variables)
    assert config.broker_id == 3, "only --environment looks at variables"


def test_what_is_wrong_with_variables_is_said_at_once(defaults: Path) -> None:
    with pytest.raises(ConfigErrors) as caught:
        read_configuration(
            BrokerArguments(None, {}, str(defaults)),
            str(defaults),
            {"KAFKA_NUM_PARTITIONS": "x", "KAFKA_BROKER_ID": "y"},
        )
    said = start_failure(str(defaults), caught.value, by_variables=True)
    assert "num.partitions" in said
    assert "broker.id" in said
    assert "check-config" not in said, "the file is not what is wrong"


def test_variables_give_loggers_their_levels() -> None:
    variables = {"KAFKA_LOG4J_LOGGERS": "test.of.variables=DEBUG"}
    set_logger_levels(BrokerArguments("s.properties", {}), variables)
    assert not LoggerLevels().exists("test.of.variables")
    set_logger_levels(BrokerArguments(None, {}, "d.properties"), variables)
    assert LoggerLevels().level("test.of.variables") == "DEBUG"
    LoggerLevels().unset_level("test.of.variables")
