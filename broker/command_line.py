"""The command line of the broker, and the development broker, which runs without configuration (`--dev`)."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from config.broker_config import BrokerConfig
from config.definitions import ConfigErrors
from config.environment_variables import keys_of, logger_levels
from config.properties import load_properties
from environment.logging_setup import LEVELS, LoggerLevels
from protocol.value import Value

DEVELOPMENT_PORT = 9092
DEVELOPMENT_METRICS_PORT = 9308
PLACES = ("log.dirs", "metrics.listener")
"""Directories and ports of a container. Its defaults for these apply to every broker that runs in it."""


class CommandLineError(Exception):
    """The command line is invalid; the message names the part."""


class BrokerArguments(Value):
    """A parsed command line: the path of server.properties, if given, and the overrides."""

    path: str | None
    overrides: dict[str, str]
    defaults: str | None = None
    """With `--environment`: the container's default file. It applies if server.properties is not given."""
    prints: bool = False
    """Whether to print the configuration instead of starting a broker."""

    @property
    def is_development(self) -> bool:
        """Whether the broker runs without a configuration file (`--dev`)."""
        return self.path is None and self.defaults is None


def usage() -> str:
    """The usage line, with the command that was typed."""
    command = os.environ.get("ODRADEK_COMMAND", "kafka-server-start.sh")
    return f"USAGE: {command} [-daemon] (server.properties | --dev) [--override property=value]*"


def help_text() -> str:
    """The answer to `--help`."""
    return f"""{usage()}

Run a broker in the foreground until Ctrl-C or SIGTERM.

  server.properties      Configuration, in Kafka's format.
  --dev                  Need no configuration: listen on 127.0.0.1:{DEVELOPMENT_PORT}, or on a free port when that one
                         is in use, serve metrics, and keep data in a temporary directory that is deleted at the end.
  --override KEY=VALUE   Set a configuration key; it wins over the file. May be given several times.
  --environment FILE     Take keys from KAFKA_* variables, as the container images of Apache Kafka do: they win over
                         server.properties. Without both, FILE is the configuration.
  --print                Print the configuration that these options give, and start nothing.
  -daemon                Run in the background, with logs in $LOG_DIR. Must come first.

`odradek check-config server.properties` says what each key of a file means here."""


def parse_arguments(argv: list[str]) -> BrokerArguments:
    """Read the command line. Raises UsageError."""
    path: str | None = None
    defaults: str | None = None
    development = prints = False
    overrides: dict[str, str] = {}
    rest = list(argv)
    while rest:
        word = rest.pop(0)
        if word == "--dev":
            development = True
            continue
        if word == "--print":
            prints = True
            continue
        if word == "--environment" and rest:
            defaults = rest.pop(0)
            continue
        if word.startswith("--override="):
            pair = word.removeprefix("--override=")
        elif word == "--override" and rest:
            pair = rest.pop(0)
        elif path is None and not overrides and not word.startswith("-"):
            path = word
            continue
        else:
            raise CommandLineError(f"Found non argument parameters: {word}\n{usage()}")
        name, equals, value = pair.partition("=")
        if not equals or not name.strip():
            raise CommandLineError(f"Invalid command line property: {pair}\n{usage()}")
        overrides[name.strip()] = value.strip()
    file = path or defaults
    if development and file is not None:
        raise CommandLineError(f"--dev takes no file; give {file} without --dev, or --dev alone\n{usage()}")
    if not development and file is None:
        raise CommandLineError(usage())
    return BrokerArguments(path, overrides, defaults, prints)


@contextmanager
def properties_file(arguments: BrokerArguments) -> Iterator[str]:
    """Yield the path of the configuration file; with `--dev`, a file in a directory that is deleted afterwards."""
    file = arguments.path or arguments.defaults
    if file is not None:
        yield file
        return
    # Only `--dev` needs these; importing them here makes every other start faster.
    from pathlib import Path
    from tempfile import TemporaryDirectory

    with TemporaryDirectory(prefix="odradek-", ignore_cleanup_errors=True) as directory:
        path = Path(directory, "server.properties")
        path.write_text(development_properties(directory), encoding="utf-8")
        yield str(path)


def given_properties(arguments: BrokerArguments, path: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Merge the keys of `path`, the environment variables (with `--environment`) and the overrides; later ones win.

    Once a variable sets a key, only PLACES of the container's default file apply, as in Apache Kafka's image: its other
    defaults suit a single broker, and a broker of a cluster must not inherit their replication factor of 1. Raises
    ConfigError, OSError.
    """
    with open(path, "rb") as file:
        properties = load_properties(file.read())
    named = {} if arguments.defaults is None else keys_of(environment)
    if named and arguments.path is None:
        properties = {key: text for key, text in properties.items() if key in PLACES}
    return {**properties, **named, **arguments.overrides}


def read_configuration(arguments: BrokerArguments, path: str, environment: Mapping[str, str]) -> BrokerConfig:
    """Parse the result of `given_properties`, with references resolved. Raises ConfigError, OSError."""
    given = given_properties(arguments, path, environment)
    if any("${" in text for text in given.values()):
        from config.properties import resolve
        from security.openssl_files import read_bytes

        given = resolve(given, environment, read_bytes)
    options = environment.get("KAFKA_OPTS", "")
    if "java.security.auth.login.config" in options or "sasl.oauthbearer.allowed.urls" in options:
        from config.environment_variables import with_jaas_file
        from environment.system import read_text

        given = with_jaas_file(given, options, read_text)
    if "java.security.krb5.conf" in options:
        from security.jaas import KERBEROS_PROPERTY, system_properties

        if kerberos := system_properties(options).get(KERBEROS_PROPERTY):
            os.environ["KRB5_CONFIG"] = kerberos
    return BrokerConfig.of(given)


def set_logger_levels(arguments: BrokerArguments, environment: Mapping[str, str]) -> None:
    """Set the logger levels that environment variables give (with `--environment`). Raises ConfigError."""
    if arguments.defaults is not None:
        for name, level in logger_levels(environment, LEVELS).items():
            LoggerLevels().set_level(name, level)


def development_properties(directory: str) -> str:
    """The configuration of a standalone broker on this machine, with its data in `directory`."""
    return (
        "broker.id=0\n"
        f"listeners=PLAINTEXT://127.0.0.1:{free_port(DEVELOPMENT_PORT)}\n"
        f"metrics.listener=127.0.0.1:{free_port(DEVELOPMENT_METRICS_PORT)}\n"
        f"log.dirs={directory}/data\n"
        "offsets.topic.replication.factor=1\n"
        "transaction.state.log.replication.factor=1\n"
        "transaction.state.log.min.isr=1\n"
        "group.initial.rebalance.delay.ms=0\n"
    )


def free_port(preferred: int) -> int:
    """`preferred` if it is free, else a port that the operating system chooses."""
    import socket

    for port in (preferred, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            bound: int = probe.getsockname()[1]
            return bound
    return preferred


def announcement(config: BrokerConfig) -> str:
    """The lines that a development broker prints once it serves."""
    address = config.advertised_listeners[0]
    lines = [
        "A broker for development is running. Stop it with Ctrl-C.",
        f"  bootstrap server  {address.host or 'localhost'}:{address.port}",
        f"  data              {', '.join(config.log_dirs)} (deleted when it stops)",
    ]
    if config.metrics_listener is not None:
        lines.insert(2, f"  metrics           http://{config.metrics_listener}/metrics")
    return "\n".join(lines)


def start_failure(path: str, error: Exception, *, by_variables: bool = False) -> str:
    """The reason for a failed start, with a remedy. `by_variables`: `path` is not the only configuration."""
    if isinstance(error, OSError):
        return f"cannot read {path}: {error.strerror or error}"
    if by_variables or not isinstance(error, ConfigErrors):
        return str(error)
    return f"{error}\n`odradek check-config {path}` explains each key"
