"""kafka-configs creates and deletes SCRAM users, through a broker and before one exists.

`test_tools_parity` compares its output for a broker with Kafka's.
"""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from client.admin import list_topics
from client.errors import AuthenticationError
from client.kafka_client import KafkaClient
from client.settings import ClientSettings
from security.jaas import MODULES
from tests.kit.broker_process import ROOT, BrokerProcess, free_port
from tests.kit.zookeeper import real_zookeeper, served_tree
from tests.tools.tool_pair import Answer, Runner, Step, play
from tools import configs

MECHANISM = "SCRAM-SHA-512"
ALICE = ["--entity-type", "users", "--entity-name", "alice"]


def run(*arguments: str, **environment: str) -> Answer:
    """Run our tool in a separate process."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "tools.configs", *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    return Answer(done.returncode, done.stdout, done.stderr)


class SaslBroker:
    """A broker with a plain-text listener and one that requires SCRAM."""

    def __init__(self, directory: Path, others: Mapping[str, str] | None = None) -> None:
        self.sasl_address = f"127.0.0.1:{free_port()}"
        plain = f"127.0.0.1:{free_port()}"
        settings = {
            "listeners": f"PLAINTEXT://{plain},SASL_PLAINTEXT://{self.sasl_address}",
            "sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512",
            **(others or {}),
        }
        self.process = BrokerProcess(directory, settings)
        self.process.address = plain

    def lets_in(self, user: str, password: str, mechanism: str = MECHANISM) -> bool:
        """Whether a user can log in."""
        jaas = f'{MODULES[mechanism]} required username="{user}" password="{password}";'
        settings = {
            "bootstrap.servers": self.sasl_address,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": mechanism,
            "sasl.jaas.config": jaas,
        }

        async def log_in() -> None:
            async with KafkaClient(ClientSettings.parse(settings)) as client:
                await list_topics(client)

        try:
            asyncio.run(log_in())
        except AuthenticationError as error:
            assert "invalid credentials" in str(error)
            return False
        return True


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SaslBroker]:
    broker = SaslBroker(tmp_path_factory.mktemp("broker"))
    broker.process.start()
    yield broker
    broker.process.stop()


def test_a_user_comes_and_goes(broker: SaslBroker, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["--bootstrap-server", broker.process.address, *ALICE]
    for password in ("one", "=, two"):
        added = f"{MECHANISM}=[iterations=8192,password={password}]"
        assert configs.main([*command, "--alter", "--add-config", added]) == 0
        assert [broker.lets_in("alice", each) for each in ("one", "=, two")] == [password == "one", password != "one"]
        assert not broker.lets_in("alice", password, "SCRAM-SHA-256")
        assert capsys.readouterr().out == "Completed updating config for user alice.\n"
    assert configs.main([*command, "--describe"]) == 0
    assert capsys.readouterr().out == (
        "SCRAM credential configs for user-principal 'alice' are SCRAM-SHA-512=iterations=8192\n"
    )
    assert configs.main([*command, "--alter", "--delete-config", MECHANISM]) == 0
    assert not broker.lets_in("alice", "=, two")
    assert configs.main([*command, "--alter", "--delete-config", MECHANISM]) == 1
    assert "Attempt to delete a user credential that does not exist" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("credential", "said"),
    [
        ("iterations=4095,password=hush", "Iterations 4095 is less than the minimum 4096 required for SCRAM-SHA-512\n"),
        ("iterations=-2,password=hush", "Iterations -2 is less than the minimum 4096 required for SCRAM-SHA-512\n"),
        ("iterations=,password=hush", 'For input string: ""\n'),
        ("pasword=hush", "Invalid credential property SCRAM-SHA-512: it has to be [iterations=N,password=P]\n"),
        ("password=", "Empty key\n"),
        ("iterations=16385,password=hush", "Too many iterations\n"),
    ],
)
def test_mistakes_do_not_repeat_the_password(
    broker: SaslBroker, capsys: pytest.CaptureFixture[str], credential: str, said: str
) -> None:
    command = ["--bootstrap-server", broker.process.address, "--alter", *ALICE]
    assert configs.main([*command, "--add-config", f"{MECHANISM}=[{credential}]"]) == 1
    error = capsys.readouterr().err
    assert error.endswith(said)
    assert "hush" not in error
    assert error == said or "password=[hidden]" in error


def test_users_from_before_the_first_start(tmp_path: Path) -> None:
    """They include the broker's own user, which its inter-broker listener requires."""
    with served_tree(tmp_path / "tree") as tree:
        address = f"{tree.address}/kafka"
        for user in ("alice", "broker"):
            added = f"{MECHANISM}=[iterations=20000,password={user}'s]"
            done = run("--zookeeper", address, "--alter", "--user", user, "--add-config", added)
            assert (done.code, done.stderr) == (0, "")
            assert done.stdout.endswith(f"\nCompleted updating config for entity: user-principal '{user}'.\n")
        jaas = f'{MODULES[MECHANISM]} required username="broker" password="broker\'s";'
        broker = SaslBroker(
            tmp_path / "broker",
            {
                "zookeeper.connect": address,
                "security.inter.broker.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism.inter.broker.protocol": MECHANISM,
                "listener.name.sasl_plaintext.scram-sha-512.sasl.jaas.config": jaas,
            },
        )
        broker.process.start()
        assert broker.lets_in("alice", "alice's")
        assert not broker.lets_in("alice", "broker's")
        # The broker applies changes made in ZooKeeper.
        done = run("--zookeeper", address, "--alter", "--user", "alice", "--delete-config", MECHANISM)
        assert (done.code, done.stderr) == (0, "")
        assert not broker.lets_in("alice", "alice's")
        broker.process.stop()


def test_a_zookeeper_that_is_not_there_or_does_not_know_the_tool(tmp_path: Path) -> None:
    command = ["--alter", "--user", "alice", "--add-config", f"{MECHANISM}=[password=x]"]
    refused = run("--zookeeper", "nowhere:port", *command)
    assert (refused.code, refused.stderr.count("\n")) == (1, 1)
    assert "nowhere:port" in refused.stderr
    missing = run("--zookeeper", "localhost:1", *command, "--zk-tls-config-file", str(tmp_path / "none"))
    assert (missing.code, missing.stderr.count("\n")) == (1, 1)
    assert "No such file or directory" in missing.stderr


STEPS = f"""
configs --zookeeper ADDRESS --describe --entity-type users
configs --zookeeper ADDRESS --alter --user SIDE-u --add-config {MECHANISM}=[iterations=8192,password=x]
configs --zookeeper ADDRESS --describe --user SIDE-u
configs --zookeeper ADDRESS --alter --user SIDE-u --add-config SCRAM-SHA-256=[password=x] --delete-config {MECHANISM}
configs --zookeeper ADDRESS --describe --user SIDE-u
configs --zookeeper ADDRESS --alter --user SIDE-u --add-config SCRAM-SHA-256=[iterations=20000,password=x]
configs --zookeeper ADDRESS --describe --user SIDE-u
configs --zookeeper ADDRESS --alter --user SIDE-u --delete-config {MECHANISM}
configs --zookeeper ADDRESS --alter --user SIDE-u --add-config producer_byte_rate=1
configs --zookeeper ADDRESS --alter --user SIDE-u --add-config {MECHANISM}=[iterations=1,password=x]
configs --zookeeper ADDRESS --alter --user SIDE-u --add-config {MECHANISM}=[iterations=8192]
configs --zookeeper ADDRESS --alter --user-defaults --add-config {MECHANISM}=[password=x]
configs --zookeeper ADDRESS --alter --entity-type users --add-config {MECHANISM}=[password=x]
configs --zookeeper ADDRESS --describe --user-defaults
configs --zookeeper ADDRESS --describe --user SIDE-nobody
configs --zookeeper ADDRESS --alter --user 'SIDE-a /%' --add-config {MECHANISM}=[password=x]
configs --zookeeper ADDRESS --describe --user 'SIDE-a /%'
""".strip().splitlines()


@pytest.mark.java
def test_kafkas_tool_says_the_same_of_a_zookeeper(kafkas: Runner, ours: Runner, tmp_path: Path) -> None:
    with real_zookeeper(tmp_path / "zookeeper") as server:
        for line in STEPS:
            said = []
            for runner in (kafkas, ours):
                answer = play(runner, Step(line), server.address, tmp_path)
                shown = re.sub(r"(salt|\w+_key)=[^,\n]+", r"\1=...", answer.stdout).replace(
                    f"{runner.side}-", "<side>-"
                )
                # Kafka shows keys in any order.
                said.append((answer.code, [sorted(words.split(",")) for words in shown.split()]))
            assert said[0] == said[1], line
