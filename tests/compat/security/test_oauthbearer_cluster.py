"""Brokers that authenticate each other by tokens only, which expire repeatedly: a cluster, and one together with Apache
Kafka.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.compat.security.secured_brokers import (
    COUNT,
    check_beside_an_apache_kafka,
    consume,
    produce,
    secured_brokers,
)
from tests.kit.apache_kafka import zookeeper
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
        """Both kinds: the test itself uses plain text."""
        return f"PLAINTEXT://{plain},SASL_PLAINTEXT://{secured}"


def test_a_cluster_of_tokens_fails_over(tmp_path: Path) -> None:
    with (
        identity_provider() as provider,
        served_tree(tmp_path / "tree") as tree,
        secured_brokers(tmp_path, tree, tokens := Tokens(provider)) as cluster,
    ):
        client = tokens.client
        admin = AdminClient(client)
        admin.create_topics([NewTopic("t", 3, 3)])["t"].result(30)
        cluster.await_full_isr("t")
        produce(client, "t", 0)
        # Meanwhile each broker has fetched several tokens, and its connections have had several sessions.
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
    with identity_provider() as provider, zookeeper(tmp_path / "zookeeper") as address:
        check_beside_an_apache_kafka(tmp_path, address, Tokens(provider))
