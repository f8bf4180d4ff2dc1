"""kafka-configs sets and shows quotas; `test_tools_parity` compares it with Kafka's."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kit.broker_process import BrokerProcess
from tools import configs


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    broker = BrokerProcess(tmp_path_factory.mktemp("broker"))
    broker.start()
    yield broker.address
    broker.stop()


ALICE = ["--entity-type", "users", "--entity-name", "alice"]
SET_AND_SHOWN = [
    (ALICE, "producer_byte_rate=1024,request_percentage=12.5", "user-principal 'alice'", "user alice"),
    ([*ALICE, "--entity-type", "clients", "--entity-default"], "consumer_byte_rate=7",
     "user-principal 'alice', the default client-id", "user alice"),
    (["--entity-type", "clients", "--entity-type", "users", "--entity-default", "--entity-name", "bob"],
     "producer_byte_rate=3", "user-principal 'bob', the default client-id", None),
    (["--user-defaults"], "controller_mutation_rate=0.5", "the default user-principal", None),
    (["--client", "app"], "consumer_byte_rate=9", "client-id 'app'", "client app"),
    (["--user", "CN=c, O=d", "--client", "50%"], "consumer_byte_rate=1",
     "user-principal 'CN=c, O=d', client-id '50%'", "client 50%"),
    (["--ip", "10.0.0.1"], "connection_creation_rate=5", "ip '10.0.0.1'", "ip 10.0.0.1"),
    (["--ip-defaults"], "connection_creation_rate=50", "the default ip", None),
]  # fmt: skip


@pytest.mark.parametrize(("entity", "quotas", "shown", "title"), SET_AND_SHOWN)
def test_quotas_are_set_shown_and_taken_away(
    address: str,
    capsys: pytest.CaptureFixture[str],
    entity: list[str],
    quotas: str,
    shown: str,
    title: str | None,
) -> None:
    command = ["--bootstrap-server", address]
    assert configs.main([*command, "--alter", *entity, "--add-config", quotas]) == 0
    said = capsys.readouterr().out
    assert said.startswith("Completed updating " + ("default config for" if title is None else f"config for {title}."))
    assert configs.main([*command, "--describe", *entity]) == 0
    pairs = [quota.partition("=") for quota in quotas.split(",")]
    values = ", ".join(f"{key}={float(value)}" for key, _, value in pairs)
    assert capsys.readouterr().out == f"Quota configs for {shown} are {values}\n"
    keys = ",".join(key for key, _, _ in pairs)
    assert configs.main([*command, "--alter", *entity, "--delete-config", keys]) == 0
    capsys.readouterr()
    assert configs.main([*command, "--alter", *entity, "--delete-config", keys]) == 1
    assert capsys.readouterr().err == f"Invalid config(s): {keys}\n"
    assert configs.main([*command, "--describe", *entity]) == 0
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("entity", "quota", "said"),
    [
        (ALICE, "producer_byte_rate=much", "Cannot parse quota configuration value for producer_byte_rate: much"),
        (ALICE, "producer_byte_rate=1.5", "Configuration producer_byte_rate must be a LONG value"),
        (ALICE, "retention.ms=1", "Only quota and SCRAM credential configs can be added for 'users'"),
        (["--client", "a"], "retention.ms=1", "Only quota configs can be added for 'clients'"),
        (["--ip", "10.0.0.1"], "producer_byte_rate=1", "Only connection quota configs can be added for 'ips'"),
        (["--ip", "10.0.0.256"], "connection_creation_rate=1", "must be a valid IP or resolvable host"),
        (["--entity-type", "users"], "producer_byte_rate=1", "an entity-name or default entity must be specified"),
    ],
)
def test_mistakes(address: str, capsys: pytest.CaptureFixture[str], entity: list[str], quota: str, said: str) -> None:
    assert configs.main(["--bootstrap-server", address, "--alter", *entity, "--add-config", quota]) == 1
    assert said in capsys.readouterr().err
