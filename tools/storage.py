"""kafka-storage: format log directories before a broker's first start (Kafka class `StorageTool`).

Brokers do not need it: they format their directories themselves. It is for scripts written for KRaft.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import re
import subprocess
import sys
import uuid
from typing import Final

from client.security_admin import SaltedPassword
from config.broker_config import BrokerConfig
from config.definitions import ConfigError
from protocol.scram_mechanisms import HASHES, MIN_ITERATIONS
from storage.directory.meta_properties import LogDirError, MetaProperties, read_meta_properties
from storage.io.os_file_system import OsFileSystem
from tools.configurations.quotas import RefusedError
from tools.configurations.scram_users import salted_passwords
from tools.local_cluster.process_commands import server_module
from tools.support.common import read_properties, reason
from tools.support.options import ArgumentParser

_CREDENTIAL: Final = re.compile(r"(?P<mechanism>[^=]+)=\[(?P<options>.*)\]", re.DOTALL)
_OPTION: Final = re.compile(r'(name|password|iterations|salt|saltedpassword)=("[^"]*"|[^,]*)(?:,|\Z)')


def main(argv: list[str]) -> int:
    """Run the tool; returns its exit code."""
    arguments = make_parser().read(argv, needs_arguments=True)
    if isinstance(arguments, int):
        return arguments
    if arguments.command == "random-uuid":
        print(random_uuid())
        return 0
    try:
        return info(arguments.config) if arguments.command == "info" else format_storage(arguments)
    except (ConfigError, LogDirError, OSError, RefusedError) as error:
        print(reason(error), file=sys.stderr)
        return 1


def make_parser() -> ArgumentParser:
    """The commands and their options."""
    parser = ArgumentParser("kafka-storage", "Format log directories, and say whose they are.")
    commands = parser.add_commands()
    for name, purpose in (("info", "Say whose the log directories are."), ("format", "Claim them for a cluster.")):
        command = commands.add_parser(name, help=purpose, description=purpose)
        command.add_argument(
            "--config", "-c", required=True, metavar="FILE", help="The configuration file of the broker."
        )
    command.add_argument("--cluster-id", "-t", required=True, help="The id of the cluster.")
    command.add_argument(
        "--add-scram",
        "-S",
        action="append",
        default=[],
        help="A user: 'SCRAM-SHA-256=[name=alice,password=alice-secret]'; also iterations=, salt= and saltedpassword=.",
    )
    command.add_argument("--ignore-formatted", "-g", action="store_true", help="Leave formatted directories alone.")
    command.add_argument("--release-version", "-r", help="Accepted and ignored, as are features.")
    command.add_argument("--feature", "-f", action="append", help=argparse.SUPPRESS)
    quorum = command.add_mutually_exclusive_group()
    quorum.add_argument("--standalone", "-s", action="store_true", help="One node, as it always is here.")
    quorum.add_argument("--no-initial-controllers", "-N", action="store_true", help="The same.")
    quorum.add_argument("--initial-controllers", "-I", help="One controller; several are refused.")
    commands.add_parser("random-uuid", help="Print a new id of a cluster.")
    return parser


def random_uuid() -> str:
    """A new id in Kafka's base64 form; never begins with a dash (`Uuid.randomUuid`)."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not text.startswith("-"):
            return text


def info(path: str) -> int:
    """Print the meta.properties of each directory; returns the exit code. Raises ConfigError, LogDirError, OSError."""
    config, _ = BrokerConfig.examine(read_properties(path))
    file_system = OsFileSystem()
    found: list[MetaProperties] = []
    present, problems = [], []
    for directory in sorted(config.log_dirs):
        if not file_system.exists(directory):
            problems.append(f"{directory} does not exist")
            continue
        present.append(directory)
        known = read_meta_properties(file_system, directory)
        if known is None:
            problems.append(f"{directory} is not formatted.")
        else:
            found.append(known)
    _print_list("Found log director" + ("y:" if len(present) == 1 else "ies:"), present)
    if found:
        print(f"Found metadata: {_shown(found[0])}\n")
    _print_list("Found problem:" if len(problems) == 1 else "Found problems:", problems)
    return 1 if problems else 0


def _print_list(title: str, lines: list[str]) -> None:
    if lines:
        print(title, *(f"  {line}" for line in lines), "", sep="\n")


def _shown(known: MetaProperties) -> str:
    number = "node.id" if known.version == 1 else "broker.id"
    shown = {number: known.broker_id, "cluster.id": known.cluster_id, "version": known.version}
    return "{" + ", ".join(f"{name}={shown[name]}" for name in sorted(shown) if shown[name] is not None) + "}"


def format_storage(arguments: argparse.Namespace) -> int:
    """Claim the directories for a cluster; returns the exit code. Raises RefusedError."""
    if "," in (arguments.initial_controllers or ""):
        raise RefusedError("--initial-controllers names several controllers, and a quorum of several is not read here")
    users = []
    for name, each in map(parse_user, arguments.add_scram):
        salt, salted = (base64.b64encode(part).decode() for part in (each.salt, each.salted))
        users.append([name, each.mechanism, each.iterations, salt, salted])
    wanted = {
        "cluster_id": arguments.cluster_id,
        "ignore_formatted": arguments.ignore_formatted,
        "users": users,
    }
    command = server_module("broker.format_storage", arguments.config)
    # Not as arguments, which other users of this machine can see.
    done = subprocess.run(
        command.words, env={**os.environ, **command.environment}, input=json.dumps(wanted).encode(), check=False
    )
    return done.returncode


def parse_user(text: str) -> tuple[str, SaltedPassword]:
    """Parse a user and credential of `--add-scram`. Raises RefusedError, which never shows the password."""
    found = _CREDENTIAL.fullmatch(text.strip())
    if found is None or found["mechanism"] not in HASHES:
        raise RefusedError(f"--add-scram must look like MECHANISM=[name=N,password=P]; mechanisms: {', '.join(HASHES)}")
    mechanism, rest = found["mechanism"], found["options"]
    options = {each[1]: each[2].strip('"') for each in _OPTION.finditer(rest)}
    if "".join(each[0] for each in _OPTION.finditer(rest)) != rest or not options.get("name"):
        needed = "and beside it 'password', 'salt', 'saltedpassword', 'iterations'"
        raise RefusedError(f"You must supply 'name' to add-scram, {needed}")
    if ("password" in options) == ("saltedpassword" in options):
        raise RefusedError("You must supply one of 'password' or 'saltedpassword' to add-scram")
    iterations = options.get("iterations", str(MIN_ITERATIONS))
    if "salt" not in options and "saltedpassword" not in options:
        (salted,) = salted_passwords({mechanism: f"iterations={iterations},password={options['password']}"})
        return options["name"], salted
    if not iterations.isdecimal() or int(iterations) < MIN_ITERATIONS:
        raise RefusedError(f"The 'iterations' value must be >= {MIN_ITERATIONS} for add-scram {mechanism}")
    try:
        salt = base64.b64decode(options["salt"], validate=True)
        if "password" in options:
            return options["name"], SaltedPassword.of(mechanism, int(iterations), salt, options["password"])
        ready = base64.b64decode(options["saltedpassword"], validate=True)
    except KeyError:
        raise RefusedError("You must supply 'salt' with 'saltedpassword' to add-scram") from None
    except ValueError:
        raise RefusedError("'salt' and 'saltedpassword' of add-scram have to be base64") from None
    return options["name"], SaltedPassword(mechanism, int(iterations), salt, ready)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
