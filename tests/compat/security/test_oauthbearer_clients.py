"""OAUTHBEARER with an identity provider: librdkafka, kafka-python, aiokafka and the tools of this project."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compat.security.attempts import PYTHON_CLIENTS, attempt
from tests.kit.broker_process import ROOT, BrokerProcess, free_port
from tests.kit.security.certificates import Authority
from tests.kit.security.identity_provider import (
    AUDIENCE,
    CLIENT,
    ISSUER,
    SECRET,
    IdentityProvider,
    SigningKey,
    claims_of,
    identity_provider,
    unsigned,
)
from tests.kit.waiting import eventually

PACKAGE = "org.apache.kafka.common.security.oauthbearer."
OUT = "listener.name.sasl_plaintext.oauthbearer."
URLS = "org.apache.kafka.sasl.oauthbearer.allowed.urls"


class Site:
    """A broker, an identity provider with TLS, and files for tools."""

    def __init__(self, directory: Path, provider: IdentityProvider, trusted: Path) -> None:
        self._directory = directory
        self.provider = provider
        self.plain, self.sasl = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
        self._tls = f'ssl.truststore.type="PEM" ssl.truststore.location="{trusted}"'
        self.process = BrokerProcess(
            directory / "broker",
            {
                "listeners": f"PLAINTEXT://{self.plain},SASL_PLAINTEXT://{self.sasl}",
                "sasl.enabled.mechanisms": "OAUTHBEARER",
                f"{OUT}sasl.server.callback.handler.class": f"{PACKAGE}OAuthBearerValidatorCallbackHandler",
                f"{OUT}sasl.jaas.config": f"{PACKAGE}OAuthBearerLoginModule required {self._tls};",
                "sasl.oauthbearer.jwks.endpoint.url": provider.url("keys"),
                "sasl.oauthbearer.expected.audience": AUDIENCE,
                "sasl.oauthbearer.expected.issuer": ISSUER,
                URLS: provider.url("keys"),
            },
        )
        self.process.address = self.plain

    def attempt(self, client: str, token: str) -> str:
        """See `tests.compat.security.attempts`."""
        given = {"address": self.sasl, "protocol": "sasl_plaintext", "mechanism": "OAUTHBEARER", "token": token}
        return attempt(client, {**given, "topic": f"of-{client}"})

    def properties(self, options: str, **others: str) -> str:
        """A file of properties; `options` are those of the login module."""
        given = {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.jaas.config": f"{PACKAGE}OAuthBearerLoginModule required {options} {self._tls};",
            "sasl.login.callback.handler.class": f"{PACKAGE}OAuthBearerLoginCallbackHandler",
            "sasl.oauthbearer.token.endpoint.url": self.provider.url("token"),
            "default.api.timeout.ms": "20000",
            **{name.replace("_", "."): value for name, value in others.items()},
        }
        path = self._directory / "client.properties"
        path.write_text("".join(f"{name}={value}\n" for name, value in given.items()))
        return str(path)

    def topics(self, file: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run `odradek topics` with the file."""
        command = [sys.executable, "-m", "odradek", "topics", "--bootstrap-server", self.sasl, *arguments]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        given = [*command, "--command-config", file]
        return subprocess.run(given, capture_output=True, text=True, timeout=60, check=False, env=environment)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    directory, authority = tmp_path_factory.mktemp("tokens"), Authority()
    with identity_provider(authority, directory) as provider:
        made = Site(directory, provider, authority.write_pem(directory / "trusted.pem"))
        made.process.start()
        yield made
        assert made.process.stop() == 0
        output = made.process.output.read_text()
    assert "Traceback" not in output
    assert provider.key.token().split(".")[0] not in output


@pytest.mark.parametrize("client", PYTHON_CLIENTS)
def test_whoever_has_a_token_is_served(client: str, site: Site) -> None:
    assert site.attempt(client, site.provider.key.token()) == "received 500"


@pytest.mark.parametrize(
    "token",
    [
        SigningKey().token(),
        unsigned(claims_of()),
        SigningKey(kid="unknown").token(),
    ],
    ids=["another key", "unsigned", "unknown key"],
)
def test_others_are_told(token: str, site: Site) -> None:
    assert "invalid_token" in site.attempt("librdkafka", token)


def test_an_expired_token(site: Site) -> None:
    assert "invalid_token" in site.attempt("librdkafka", site.provider.key.token(exp=claims_of()["iat"] - 60))
    said = site.process.output.read_text()
    assert "A token is refused: it has expired 6" in said


def test_tools_ask_for_a_token(site: Site) -> None:
    file = site.properties(f'clientId="{CLIENT}" clientSecret="{SECRET}"')
    made = site.topics(file, "--create", "--topic", "by-token")
    assert (made.returncode, made.stdout) == (0, "Created topic by-token.\n"), made.stderr
    assert "by-token" in site.topics(file, "--list").stdout


def test_tools_say_why_there_is_no_token(site: Site) -> None:
    refused = site.topics(site.properties(f'clientId="{CLIENT}" clientSecret="hidden"'), "--list")
    assert refused.returncode == 1
    said = refused.stdout + refused.stderr
    assert f"no token: {site.provider.url('token')} answers with HTTP status 401" in said
    assert "hidden" not in said
    site.provider.claims = {"aud": "another"}
    refused = site.topics(site.properties(f'clientId="{CLIENT}" clientSecret="{SECRET}"'), "--list")
    site.provider.claims = {}
    assert '{"status":"invalid_token"}' in refused.stdout + refused.stderr
    no_signature = site.properties('unsecuredLoginStringClaim_sub="alice"', sasl_login_callback_handler_class="")
    refused = site.topics(no_signature, "--list")
    assert '{"status":"invalid_token"}' in refused.stdout + refused.stderr


def test_keys_of_an_issuer_may_change(site: Site) -> None:
    """The last test: the first key is invalid afterwards."""
    site.provider.key = SigningKey("ES256", kid="second")
    site.provider.jwks = {"keys": [site.provider.key.jwk()]}
    file = site.properties(f'clientId="{CLIENT}" clientSecret="{SECRET}"')
    eventually("the second key counts", lambda: site.topics(file, "--list").returncode, lambda code: code == 0)
