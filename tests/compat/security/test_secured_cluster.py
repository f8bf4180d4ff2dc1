"""Brokers that connect to each other only over TLS and SASL: three of Odradek, and one together with an Apache
Kafka.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import (
    AdminClient,
    NewTopic,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from kazoo.client import KazooClient

from security.sasl_exchange import ScramCredential
from tests.compat.security.secured_brokers import (
    COUNT,
    check_beside_an_apache_kafka,
    consume,
    produce,
    secured_brokers,
)
from tests.kit.apache_kafka import zookeeper
from tests.kit.broker_cluster import BrokerCluster
from tests.kit.due import turn
from tests.kit.security.certificates import Authority
from tests.kit.waiting import eventually
from tests.kit.zookeeper import served_tree

pytestmark = pytest.mark.timeout(240)

MECHANISM = "SCRAM-SHA-512"
SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
BROKERS_PASSWORD = "brokers' own"
PASSWORDS = {"broker": BROKERS_PASSWORD, "alice": "alice's"}


def create_users(zookeeper_address: str) -> None:
    """Create users like `kafka-configs.sh --zookeeper` before the brokers of a cluster start."""
    client = KazooClient(zookeeper_address)
    client.start()
    for user, password in PASSWORDS.items():
        salted = hashlib.pbkdf2_hmac("sha512", password.encode(), b"salt", 4096)
        credential = ScramCredential.from_salted_password(MECHANISM, salted, b"salt", 4096).to_text()
        config = json.dumps({"version": 1, "config": {MECHANISM: credential}}).encode()
        client.create(f"/config/users/{user}", config, makepath=True)
    client.stop()
    client.close()


class Security:
    """Certificates and settings. The brokers speak SASL_SSL, or SSL with certificates on both sides."""

    def __init__(self, directory: Path, *, has_sasl: bool) -> None:
        self.authority = authority = Authority()
        self.trusted = str(authority.write_pem(directory / "trusted.pem"))
        self.protocol = "SASL_SSL" if has_sasl else "SSL"
        self.broker = {
            "security.inter.broker.protocol": self.protocol,
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(authority.issue("broker").write_pem(directory / "broker.pem")),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": self.trusted,
        }
        self.client = {"security.protocol": self.protocol, "ssl.ca.location": self.trusted, "log_level": 0}
        if has_sasl:
            jaas = f'{SCRAM_MODULE} required username="broker" password="{BROKERS_PASSWORD}";'
            self.broker |= {
                "sasl.enabled.mechanisms": MECHANISM,
                "sasl.mechanism.inter.broker.protocol": MECHANISM,
                f"listener.name.sasl_ssl.{MECHANISM.lower()}.sasl.jaas.config": jaas,
                # Sessions expire while brokers replicate and send commands.
                "connections.max.reauth.ms": "2000",
            }
            alice = {"sasl.mechanism": MECHANISM, "sasl.username": "alice", "sasl.password": PASSWORDS["alice"]}
            self.client |= alice
        else:
            self.broker["ssl.client.auth"] = "required"
            alice_pem = str(authority.issue("alice").write_pem(directory / "alice.pem"))
            self.client |= {"ssl.certificate.location": alice_pem, "ssl.key.location": alice_pem}

    def listeners(self, plain: str, secured: str) -> str:
        """Both kinds: the test itself uses plain text."""
        return f"PLAINTEXT://{plain},{self.protocol}://{secured}"


@contextlib.contextmanager
def secured_cluster(directory: Path, security: Security) -> Iterator[BrokerCluster]:
    """Three brokers, and their users."""
    with served_tree(directory / "tree") as tree:
        create_users(tree.address)
        with secured_brokers(directory, tree, security) as cluster:
            yield cluster


@pytest.mark.parametrize("has_sasl", [True, False], ids=["SASL_SSL", "SSL"])
def test_a_secured_cluster_fails_over(has_sasl: bool, tmp_path: Path) -> None:
    security = Security(tmp_path, has_sasl=has_sasl)
    with secured_cluster(tmp_path, security) as cluster:
        admin = AdminClient(security.client)
        admin.create_topics([NewTopic("t", 3, 3)])["t"].result(30)
        cluster.await_full_isr("t")
        produce(security.client, "t", 0)
        consume(security.client, "t", COUNT)
        lost = cluster.controller()
        cluster.brokers[lost].kill()
        produce(security.client, "t", COUNT)
        consume(security.client, "t", 2 * COUNT)
        cluster.brokers[lost].start()
        cluster.await_whole()
        cluster.await_full_isr("t")
        for partition in range(3):
            eventually(
                f"the same replicas of t-{partition}",
                lambda number=partition: set(cluster.logs_of("t", number).values()),
                lambda logs: len(logs) == 1,
            )
        if has_sasl:
            check_a_broker_with_an_old_password(cluster)
        else:
            check_new_certificates(cluster, security)
        assert cluster.traceback() is None
        for broker in cluster.brokers.values():
            assert "User:broker has not authenticated again in time" not in broker.output.read_text()


def check_new_certificates(cluster: BrokerCluster, security: Security) -> None:
    """Listeners and connections to other brokers use the new certificates, and reconnect after a restart."""
    security.authority.issue("broker").write_pem(Path(security.broker["ssl.keystore.location"]))
    for broker in cluster.brokers.values():
        for title in ("Listener SSL", "The connection to other brokers"):
            wanted = f"{title} has taken over its new certificates"
            eventually(wanted, broker.output.read_text, lambda output, wanted=wanted: wanted in output)
    leader = cluster.leader("t", 0)
    cluster.brokers[leader].stop()
    cluster.await_whole()
    cluster.await_full_isr("t")


def check_a_broker_with_an_old_password(cluster: BrokerCluster) -> None:
    """The broker gets an authentication error, and registers again once its password is right."""
    outside = next(number for number in cluster.brokers if number != cluster.controller())
    cluster.brokers[outside].stop()
    admin = AdminClient({"bootstrap.servers": cluster.address, "log_level": 0})

    def set_password(password: str) -> None:
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        change = UserScramCredentialUpsertion("broker", info, password.encode())
        admin.alter_user_scram_credentials([change])["broker"].result(30)

    set_password("another")
    broker = cluster.brokers[outside]
    broker.start()
    refusal = "failed authentication due to: Authentication failed during authentication due to invalid"
    others = [each for number, each in cluster.brokers.items() if number != outside]
    eventually(
        "a refusal",
        lambda: [each.output.read_text() for each in (broker, *others)],
        lambda outputs: any(refusal in output for output in outputs),
    )
    set_password(BROKERS_PASSWORD)
    cluster.await_whole()
    cluster.await_full_isr("t")


@turn(1, of=2)
@pytest.mark.slow
@pytest.mark.java
def test_beside_an_apache_kafka(tmp_path: Path) -> None:
    security = Security(tmp_path, has_sasl=True)
    with zookeeper(tmp_path / "zookeeper") as address:
        create_users(address)
        check_beside_an_apache_kafka(tmp_path, address, security)
