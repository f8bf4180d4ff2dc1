"""Clients over SASL, with and without TLS: librdkafka, kafka-python and aiokafka."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from confluent_kafka.error import KafkaException

from tests.compat.security.attempts import PYTHON_CLIENTS, attempt
from tests.kit.broker_process import BrokerProcess, free_port
from tests.kit.security.certificates import Authority

PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
PASSWORD = 'se"cret, \\ =;'


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, dict[str, str]]]:
    """A broker with both kinds of listeners: the settings for clients, by protocol."""
    directory = tmp_path_factory.mktemp("sasl")
    authority = Authority()
    plain, sasl, both = (f"127.0.0.1:{free_port()}" for _ in range(3))
    written = PASSWORD.replace("\\", "\\\\").replace('"', '\\"').replace("\\", "\\\\")
    jaas = f'{PLAIN_MODULE} required username="broker" password="b" user_broker="b" user_alice="{written}";'
    broker = BrokerProcess(
        directory / "broker",
        {
            "listeners": f"PLAINTEXT://{plain},SASL_PLAINTEXT://{sasl},SASL_SSL://{both}",
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
            "listener.name.sasl_plaintext.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
            "listener.name.sasl_plaintext.plain.sasl.jaas.config": jaas,
            "listener.name.sasl_ssl.plain.sasl.jaas.config": jaas,
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(authority.issue("broker").write_pem(directory / "broker.pem")),
        },
    )
    broker.address = plain
    broker.start()
    trusted = str(authority.write_pem(directory / "trusted.pem"))
    yield {
        "plaintext": {"bootstrap.servers": plain},
        "sasl_plaintext": {"address": sasl, "protocol": "sasl_plaintext"},
        "sasl_ssl": {"address": both, "protocol": "sasl_ssl", "trusted": trusted},
    }
    assert broker.stop() == 0
    assert "Traceback" not in broker.output.read_text()


@pytest.mark.parametrize("protocol", ["sasl_plaintext", "sasl_ssl"])
@pytest.mark.parametrize("client", PYTHON_CLIENTS)
def test_a_user_is_served(client: str, protocol: str, settings: dict[str, dict[str, str]]) -> None:
    alice = {"mechanism": "PLAIN", "username": "alice", "password": PASSWORD, "topic": f"{client}-{protocol}"}
    assert attempt(client, {**settings[protocol], **alice}) == "received 500"


@pytest.mark.parametrize(("user", "password"), [("alice", "wrong"), ("nobody", PASSWORD)])
def test_others_are_told(user: str, password: str, settings: dict[str, dict[str, str]]) -> None:
    given = {"mechanism": "PLAIN", "username": user, "password": password, "topic": "unseen"}
    answer = attempt("librdkafka", {**settings["sasl_plaintext"], **given})
    assert "Authentication failed: Invalid username or password" in answer


def test_a_mechanism_that_the_listener_does_not_have(settings: dict[str, dict[str, str]]) -> None:
    given = {"mechanism": "SCRAM-SHA-512", "username": "alice", "password": PASSWORD, "topic": "unseen"}
    answer = attempt("librdkafka", {**settings["sasl_plaintext"], **given})
    assert "supported mechanisms: PLAIN,SCRAM-SHA-256" in answer


MECHANISMS = {"SCRAM-SHA-256": ScramMechanism.SCRAM_SHA_256, "SCRAM-SHA-512": ScramMechanism.SCRAM_SHA_512}


@pytest.fixture
def admin(settings: dict[str, dict[str, str]]) -> AdminClient:
    return AdminClient(settings["plaintext"])


def alter(admin: AdminClient, *changes: object) -> None:
    """Raises KafkaException."""
    for future in admin.alter_user_scram_credentials(list(changes)).values():
        future.result(30)


def upsertion(user: str, mechanism: str, password: str, iterations: int = 4096) -> UserScramCredentialUpsertion:
    return UserScramCredentialUpsertion(user, ScramCredentialInfo(MECHANISMS[mechanism], iterations), password.encode())


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("client", PYTHON_CLIENTS)
def test_a_scram_user_is_served(
    client: str, mechanism: str, settings: dict[str, dict[str, str]], admin: AdminClient
) -> None:
    # kafka-python does not escape commas and equals signs.
    user = "kafka é" if client == "kafka-python" else f"{client}, é="
    alter(admin, upsertion(user, mechanism, PASSWORD))
    given = {"mechanism": mechanism, "username": user, "password": PASSWORD, "topic": f"{client}-{mechanism}"}
    assert attempt(client, {**settings["sasl_ssl"], **given}) == "received 500"


def test_changes_of_scram_users_count_at_once(settings: dict[str, dict[str, str]], admin: AdminClient) -> None:
    given = {**settings["sasl_plaintext"], "mechanism": "SCRAM-SHA-256", "username": "bob", "password": "one"}
    wrong = "invalid credentials with SASL mechanism SCRAM-SHA-256"
    assert wrong in attempt("librdkafka", {**given, "topic": "unseen"})
    alter(admin, upsertion("bob", "SCRAM-SHA-256", "one", 8192), upsertion("bob", "SCRAM-SHA-512", "two"))
    assert attempt("librdkafka", {**given, "topic": "bob"}) == "received 500"
    described = admin.describe_user_scram_credentials(["bob"])["bob"].result(30)
    iterations = {info.mechanism: info.iterations for info in described.scram_credential_infos}
    assert iterations == {ScramMechanism.SCRAM_SHA_256: 8192, ScramMechanism.SCRAM_SHA_512: 4096}
    alter(admin, upsertion("bob", "SCRAM-SHA-256", "other"))
    assert wrong in attempt("librdkafka", {**given, "topic": "unseen"})
    alter(admin, UserScramCredentialDeletion("bob", ScramMechanism.SCRAM_SHA_256))
    assert wrong in attempt("librdkafka", {**given, "password": "other", "topic": "unseen"})


def test_scram_changes_that_are_not_allowed(admin: AdminClient) -> None:
    with pytest.raises(KafkaException, match="Too few iterations"):
        alter(admin, upsertion("carol", "SCRAM-SHA-256", "x", 4095))
    with pytest.raises(KafkaException, match="Too many iterations"):
        alter(admin, upsertion("carol", "SCRAM-SHA-256", "x", 16_385))
    with pytest.raises(KafkaException, match="Attempt to delete a user credential that does not exist"):
        alter(admin, UserScramCredentialDeletion("carol", ScramMechanism.SCRAM_SHA_256))
    with pytest.raises(KafkaException, match="Attempt to describe a user credential that does not exist: carol"):
        admin.describe_user_scram_credentials(["carol"])["carol"].result(30)
