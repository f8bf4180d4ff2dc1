"""Brokers that know each other by tokens alone, which end again and again: a cluster, and one beside Apache Kafka."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.compat.security.test_secured_cluster import COUNT, check_both, consume, produce
from tests.kit.apache_kafka import java_server, zookeeper
from tests.kit.broker_cluster import BrokerCluster
from tests.kit.broker_process import BrokerProcess, free_port
from tests.kit.security.identity_provider import (
    AUDIENCE,
    CLIENT,
    ISSUER,
    SECRET,
    IdentityProvider,
    claims_of,
    identity_provider,
)
from tests.kit.waiting import eventually
from tests.kit.zookeeper import served_tree

pytestmark = pytest.mark.timeout(240)

PACKAGE = "org.apache.kafka.common.security.oauthbearer."
PREFIX = "listener.name.sasl_plaintext.oauthbearer."


class Tokens:
    """An identity provider, and the settings of brokers and of librdkafka."""

    def __init__(self, provider: IdentityProvider) -> None:
        provider.life_s = 5
        module = f'{PACKAGE}OAuthBearerLoginModule required clientId="{CLIENT}" clientSecret="{SECRET}";'
        self.broker = {
            "security.inter.broker.protocol": "SASL_PLAINTEXT",
            "sasl.enabled.mechanisms": "OAUTHBEARER",
            "sasl.mechanism.inter.broker.protocol": "OAUTHBEARER",
            f"{PREFIX}sasl.jaas.config": module,
            f"{PREFIX}sasl.server.callback.handler.class": f"{PACKAGE}OAuthBearerValidatorCallbackHandler",
            f"{PREFIX}sasl.login.callback.handler.class": f"{PACKAGE}OAuthBearerLoginCallbackHandler",
            "sasl.oauthbearer.jwks.endpoint.url": provider.url("keys"),
            "sasl.oauthbearer.token.endpoint.url": provider.url("token"),
            "sasl.oauthbearer.expected.audience": AUDIENCE,
            "sasl.oauthbearer.expected.issuer": ISSUER,
            "org.apache.kafka.sasl.oauthbearer.allowed.urls": f"{provider.url('keys')},{provider.url('token')}",
        }
        self.client: dict[str, Any] = {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "OAUTHBEARER",
            "oauth_cb": lambda _: (provider.key.token(), claims_of()["exp"]),
            "log_level": 0,
        }

    def listeners(self, plain: str, secured: str) -> str:
        """Both: the test itself looks at a broker in plain text."""
        return f"PLAINTEXT://{plain},SASL_PLAINTEXT://{secured}"


@contextlib.contextmanager
def token_cluster(directory: Path, tokens: Tokens) -> Iterator[BrokerCluster]:
    """Three brokers."""
    plain = {number: f"127.0.0.1:{free_port()}" for number in (1, 2, 3)}
    secured = {number: f"127.0.0.1:{free_port()}" for number in plain}
    tokens.client["bootstrap.servers"] = ",".join(secured.values())
    own = {number: {"listeners": tokens.listeners(plain[number], secured[number])} for number in plain}
    with served_tree(directory / "tree") as tree:
        settings = {"min.insync.replicas": "2", **tokens.broker}
        cluster = BrokerCluster(directory, settings=settings, own_settings=own, ensemble=[tree])
        for number, broker in cluster.brokers.items():
            broker.address = plain[number]
        cluster.address = ",".join(plain.values())
        with cluster:
            yield cluster


def test_a_cluster_of_tokens_fails_over(tmp_path: Path) -> None:
    with identity_provider() as provider, token_cluster(tmp_path, tokens := Tokens(provider)) as cluster:
        client = tokens.client
        admin = AdminClient(client)
        admin.create_topics([NewTopic("t", 3, 3)])["t"].result(30)
        cluster.await_full_isr("t")
        produce(client, "t", 0)
        # Each broker has had some tokens meanwhile, and its connections some sessions.
        eventually("more tokens", lambda: provider.asked.count("/token"), lambda asked: asked > 9)
        lost = cluster.controller()
        cluster.brokers[lost].kill()
        produce(client, "t", COUNT)
        cluster.brokers[lost].start()
        cluster.await_whole()
        cluster.await_full_isr("t")
        consume(client, "t", 2 * COUNT)
        assert cluster.traceback() is None
        for broker in cluster.brokers.values():
            assert "has not authenticated again in time" not in broker.output.read_text()


@pytest.mark.slow
@pytest.mark.java
def test_beside_an_apache_kafka(tmp_path: Path) -> None:
    apache, odradek = ({"plain": f"127.0.0.1:{free_port()}", "secured": f"127.0.0.1:{free_port()}"} for _ in range(2))
    with identity_provider() as provider, zookeeper(tmp_path / "zookeeper") as address:
        tokens = Tokens(provider)
        tokens.client["bootstrap.servers"] = f"{apache['secured']},{odradek['secured']}"
        common = {
            **tokens.broker,
            "zookeeper.connect": address,
            "offsets.topic.replication.factor": "2",
            "offsets.topic.num.partitions": "4",
            "min.insync.replicas": "2",
        }
        own = {
            "broker.id": "0",
            "listeners": tokens.listeners(**apache),
            "log.dirs": str(tmp_path / "apache"),
            "controlled.shutdown.enable": "false",
        }
        properties = tmp_path / "apache.properties"
        properties.write_text("".join(f"{key}={value}\n" for key, value in {**common, **own}.items()))
        process = BrokerProcess(
            tmp_path / "odradek", {**common, "broker.id": "7", "listeners": tokens.listeners(**odradek)}
        )
        process.address = odradek["plain"]
        with java_server("kafka.Kafka", properties, int(apache["secured"].rpartition(":")[2])):
            process.start()
            try:
                check_both(tokens.client, apache["plain"], odradek["plain"])
            finally:
                process.stop()
