"""The arguments of the broker's process."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from broker.command_line import (
    Arguments,
    UsageError,
    announcement,
    free_port,
    help_text,
    parse_arguments,
    properties_file,
    start_failure,
)
from config.broker_config import BrokerConfig


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["s.properties"], Arguments("s.properties", {})),
        (["s.properties", "--override", "a=b=c"], Arguments("s.properties", {"a": "b=c"})),
        (["s.properties", "--override=a=b"], Arguments("s.properties", {"a": "b"})),
        (["--dev"], Arguments(None, {})),
        (["--dev", "--override", "num.partitions=3"], Arguments(None, {"num.partitions": "3"})),
    ],
)
def test_arguments(words: list[str], expected: Arguments) -> None:
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
    ],
)
def test_mistakes(words: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
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
    with properties_file(Arguments(None, {})) as path:
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
