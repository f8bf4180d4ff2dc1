"""Kafka's own clients with OAUTHBEARER: tokens of an identity provider, and unsigned tokens."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.broker_process import BrokerProcess, free_port
from tests.kit.security.identity_provider import (
    AUDIENCE,
    CLIENT,
    ISSUER,
    SECRET,
    IdentityProvider,
    identity_provider,
)
from tests.tools.tool_pair import Answer, Runner, kafkas_runner

pytestmark = [pytest.mark.slow, pytest.mark.java, pytest.mark.timeout(300)]

PACKAGE = "org.apache.kafka.common.security.oauthbearer."
HANDLER = "oauthbearer.sasl.server.callback.handler.class"


class Site:
    """A broker with a listener for each kind of token, and a JVM for Kafka's tools."""

    def __init__(self, directory: Path, provider: IdentityProvider) -> None:
        self._directory = directory
        self.provider = provider
        self.addresses = {name: f"127.0.0.1:{free_port()}" for name in ("PLAINTEXT", "SIGNED", "UNSIGNED")}
        self.process = BrokerProcess(
            directory / "broker",
            {
                "listeners": ",".join(f"{name}://{address}" for name, address in self.addresses.items()),
                "listener.security.protocol.map": ("PLAINTEXT:PLAINTEXT,SIGNED:SASL_PLAINTEXT,UNSIGNED:SASL_PLAINTEXT"),
                "sasl.enabled.mechanisms": "OAUTHBEARER",
                f"listener.name.signed.{HANDLER}": f"{PACKAGE}OAuthBearerValidatorCallbackHandler",
                f"listener.name.unsigned.{HANDLER}": (
                    f"{PACKAGE}internals.unsecured.OAuthBearerUnsecuredValidatorCallbackHandler"
                ),
                "sasl.oauthbearer.jwks.endpoint.url": provider.url("keys"),
                "sasl.oauthbearer.expected.audience": AUDIENCE,
                "sasl.oauthbearer.expected.issuer": ISSUER,
                "org.apache.kafka.sasl.oauthbearer.allowed.urls": provider.url("keys"),
            },
        )
        self.process.address = self.addresses["PLAINTEXT"]
        self._runner: Runner = kafkas_runner(directory)

    def properties(self, options: str, **others: str) -> str:
        """A file of properties; `options` are those of the login module."""
        given = {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.jaas.config": f"{PACKAGE}OAuthBearerLoginModule required {options};",
            **{name.replace("_", "."): value for name, value in others.items()},
        }
        path = self._directory / "client.properties"
        path.write_text("".join(f"{name}={value}\n" for name, value in given.items()))
        return str(path)

    def with_secret(self) -> str:
        """The properties of a client that uses the identity provider."""
        return self.properties(
            f'clientId="{CLIENT}" clientSecret="{SECRET}" extension_traceId="1"',
            sasl_login_callback_handler_class=f"{PACKAGE}OAuthBearerLoginCallbackHandler",
            sasl_oauthbearer_token_endpoint_url=self.provider.url("token"),
        )

    def run(self, tool: str, listener: str, *arguments: str, given: str = "") -> Answer:
        """Run one of Kafka's tools against the listener."""
        return self._runner.run(tool, ["--bootstrap-server", self.addresses[listener], *arguments], given)

    def close(self) -> None:
        """End the JVM."""
        self._runner.close()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with identity_provider() as provider:
        made = Site(tmp_path_factory.mktemp("java"), provider)
        made.process.start()
        yield made
        made.close()
        assert made.process.stop() == 0
        assert "Traceback" not in made.process.output.read_text()


LINES = "".join(f"line {number}\n" for number in range(100))


def check_served(site: Site, listener: str, file: str) -> None:
    """Records are written and read; the reader waits some seconds for more of them."""
    made = site.run("topics", listener, "--command-config", file, "--create", "--topic", listener)
    assert made.code == 0, made
    sent = site.run("console_producer", listener, "--producer.config", file, "--topic", listener, given=LINES)
    assert sent.code == 0, sent
    options = ["--topic", listener, "--from-beginning", "--timeout-ms", "6000"]
    read = site.run("console_consumer", listener, "--consumer.config", file, *options)
    assert read.stdout == LINES, read.stderr


def test_tokens_of_an_issuer(site: Site) -> None:
    check_served(site, "SIGNED", site.with_secret())


def test_tokens_that_nobody_has_signed(site: Site) -> None:
    options = 'unsecuredLoginStringClaim_sub="alice" unsecuredLoginExtension_traceId="1"'
    file = site.properties(options)
    check_served(site, "UNSIGNED", file)
    refused = site.run("topics", "SIGNED", "--command-config", file, "--list")
    assert refused.code == 1
    assert '{"status":"invalid_token"}' in refused.stdout + refused.stderr


def test_sessions_that_end_with_their_tokens(site: Site) -> None:
    """Kafka's clients fetch another token, and reauthenticate on the same connection."""
    site.provider.life_s = 4
    file, asked = site.with_secret(), site.provider.asked.count("/token")
    # The topic is empty, so that the reader waits until its timeout.
    assert site.run("topics", "SIGNED", "--command-config", file, "--create", "--topic", "empty").code == 0
    options = ["--topic", "empty", "--from-beginning", "--timeout-ms", "15000"]
    read = site.run("console_consumer", "SIGNED", "--consumer.config", file, *options)
    site.provider.life_s = 3600
    assert "TimeoutException" in read.stderr
    assert "Processed a total of 0 messages" in read.stderr
    assert site.provider.asked.count("/token") >= asked + 5
    assert "has not authenticated again in time" not in site.process.output.read_text()


def test_a_token_for_others(site: Site) -> None:
    site.provider.claims = {"aud": "another"}
    refused = site.run("topics", "SIGNED", "--command-config", site.with_secret(), "--list")
    site.provider.claims = {}
    assert refused.code == 1
    assert '{"status":"invalid_token"}' in refused.stdout + refused.stderr
