"""odradek run: run a command with a new broker, or a cluster, that ends with it.

The command finds the broker in KAFKA_BOOTSTRAP_SERVERS, and its control API in ODRADEK_URL and ODRADEK_TOKEN. With
--tls or --sasl, KAFKA_SECURITY_PROTOCOL, KAFKA_SSL_CA_LOCATION, KAFKA_SASL_MECHANISM, KAFKA_SASL_USERNAME and
KAFKA_SASL_PASSWORD say how to log in. The exit code is that of the command.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType

import odradek
from odradek.command_list import server_root

NOT_FOUND = 127
NOT_EXECUTABLE = 126
BY_SIGNAL = 128
"""Exit codes of shells: for a command that cannot be run, and plus the number of the signal that ended it."""
USAGE_ERROR = 2


def make_parser() -> argparse.ArgumentParser:
    """The options, up to `--`."""
    parser = argparse.ArgumentParser(
        prog="odradek run",
        usage="odradek run [--topics NAME[:PARTITIONS],...] [--brokers N] [--tls] [--sasl MECHANISM] "
        "[--config KEY=VALUE] -- COMMAND [ARGUMENTS...]",
        description="Run a command with a new broker that ends with it; the exit code is that of the command.",
        allow_abbrev=False,
    )
    parser.add_argument("--topics", default="", metavar="NAME[:PARTITIONS],...", help="topics to create first")
    parser.add_argument(
        "--config", action="append", default=[], metavar="KEY=VALUE", help="a key of server.properties; may be repeated"
    )
    parser.add_argument("--brokers", type=int, default=1, metavar="N", help="a cluster of so many brokers")
    parser.add_argument("--tls", action="store_true", help="clients connect by TLS")
    parser.add_argument("--sasl", metavar="MECHANISM", help="clients log in: PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512")
    parser.add_argument("command", nargs="*", metavar="COMMAND", help="what to run, after --")
    return parser


def topics_of(text: str) -> dict[str, int]:
    """The partitions of each topic. Raises ValueError."""
    topics: dict[str, int] = {}
    for word in filter(None, text.split(",")):
        name, colon, count = word.partition(":")
        if not name or (colon and not count.isdigit()):
            raise ValueError(f"--topics {word!r} is not NAME or NAME:PARTITIONS")
        topics[name] = int(count) if colon else 1
    return topics


def config_of(pairs: Sequence[str]) -> dict[str, str]:
    """The keys of server.properties. Raises ValueError."""
    config: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise ValueError(f"--config {pair!r} is not KEY=VALUE")
        config[key] = value
    return config


def users_environment() -> dict[str, str]:
    """The environment without what `bin/odradek` added to it: the command must not import this project's packages."""
    given = {name: value for name, value in os.environ.items() if name != "ODRADEK_COMMAND"}
    paths = given.pop("PYTHONPATH", "").split(os.pathsep)
    others = [path for path in paths if path and Path(path) != server_root()]
    return {**given, "PYTHONPATH": os.pathsep.join(others)} if others else given


def run_command(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run the command to its end, and pass signals on to it; returns its exit code as a shell would."""
    processes: list[subprocess.Popen[bytes]] = []
    early: list[int] = []

    def pass_on(number: int, _frame: FrameType | None) -> None:
        if not processes:
            early.append(number)
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, pass_on)
    try:
        process = subprocess.Popen(command, env={**users_environment(), **environment})
    except FileNotFoundError:
        print(f"odradek run: {command[0]}: command not found", file=sys.stderr)
        return NOT_FOUND
    except OSError as error:
        print(f"odradek run: {command[0]}: {error.strerror}", file=sys.stderr)
        return NOT_EXECUTABLE
    processes.append(process)
    for waiting in early:
        process.send_signal(waiting)
    # A terminal sends Ctrl-C to the command, too. The command must not inherit that it is ignored.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    code = process.wait()
    return code if code >= 0 else BY_SIGNAL - code


def control_environment(broker: odradek.Broker) -> dict[str, str]:
    """How the command finds the control API."""
    return {"ODRADEK_URL": broker.control_url, "ODRADEK_TOKEN": broker.control_token}


def security_environment(kafka: odradek.Broker | odradek.Cluster) -> dict[str, str]:
    """How the command logs in, by the names of librdkafka's settings; nothing without security."""
    settings = kafka.client_config("confluent")
    if settings["security.protocol"] == "PLAINTEXT":
        return {}
    named = {name: value for name, value in settings.items() if name != "bootstrap.servers"}
    return {f"KAFKA_{name.upper().replace('.', '_')}": value for name, value in named.items()}


def run_with(
    kafka: odradek.Broker | odradek.Cluster,
    topics: Mapping[str, int],
    command: Sequence[str],
    environment: Mapping[str, str],
) -> int:
    """Create the topics and run the command; returns its exit code."""
    for name, partitions in topics.items():
        kafka.create_topic(name, partitions)
    address = {"KAFKA_BOOTSTRAP_SERVERS": kafka.bootstrap_servers}
    return run_command(command, {**address, **security_environment(kafka), **environment})


def main(argv: list[str]) -> int:
    """Run the tool; returns its exit code."""
    parser = make_parser()
    words = parser.parse_args(argv)
    if not words.command:
        parser.print_usage(sys.stderr)
        print("odradek run: name a command after --", file=sys.stderr)
        return USAGE_ERROR
    try:
        topics, config = topics_of(words.topics), config_of(words.config)
        security = {"tls": words.tls, "sasl": words.sasl}
    except ValueError as error:
        print(f"odradek run: {error}", file=sys.stderr)
        return USAGE_ERROR
    try:
        if words.brokers != 1:
            with odradek.Cluster(words.brokers, config=config, **security) as cluster:
                return run_with(cluster, topics, words.command, control_environment(cluster.broker(1)))
        with odradek.Broker(config=config, **security) as broker:
            return run_with(broker, topics, words.command, control_environment(broker))
    except odradek.OdradekError as error:
        print(f"odradek run: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
