"""OAUTHBEARER of a listener, between brokers and of clients: effective keys, and errors that stop the start."""

from __future__ import annotations

import pytest

from config.broker_config import BrokerConfig
from config.definitions import ConfigError
from config.environment_variables import with_jaas_file
from security.channel_config import client_channel
from security.oauth import EndpointSource, FileSource, TokenLogin, TokenRules, UnsecuredRules, UnsecuredSource

PACKAGE = "org.apache.kafka.common.security.oauthbearer."
MODULE = f"{PACKAGE}OAuthBearerLoginModule required"
SECURED = f"{PACKAGE}OAuthBearerValidatorCallbackHandler"
UNSECURED = f"{PACKAGE}internals.unsecured.OAuthBearerUnsecuredValidatorCallbackHandler"
LOGIN = f"{PACKAGE}OAuthBearerLoginCallbackHandler"
OUT = "listener.name.out.oauthbearer."
HANDLER, JAAS = f"{OUT}sasl.server.callback.handler.class", f"{OUT}sasl.jaas.config"
URLS = "org.apache.kafka.sasl.oauthbearer.allowed.urls"
KEYS, TOKENS = "https://issuer.example/keys?a=b", "https://issuer.example/token"
BASE = {
    "broker.id": "0",
    "listeners": "PLAINTEXT://:9092,OUT://:9093",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,OUT:SASL_PLAINTEXT",
    "sasl.enabled.mechanisms": "OAUTHBEARER",
    HANDLER: SECURED,
    "sasl.oauthbearer.jwks.endpoint.url": KEYS,
    URLS: f"{TOKENS}, {KEYS}",
}
BETWEEN = {
    "inter.broker.listener.name": "OUT",
    "zookeeper.connect": "localhost:1",
    "sasl.mechanism.inter.broker.protocol": "OAUTHBEARER",
}


def rules_of(overrides: dict[str, str | None]) -> TokenRules | UnsecuredRules | None:
    given = {name: value for name, value in {**BASE, **overrides}.items() if value is not None}
    return BrokerConfig.of(given).sasl["OUT"].tokens


def test_the_rules_of_a_listener() -> None:
    rules = rules_of({"sasl.oauthbearer.expected.audience": "a, b", "sasl.oauthbearer.scope.claim.name": " scp "})
    assert rules == TokenRules(
        "sasl.oauthbearer.jwks.endpoint.url", KEYS, None, ("a", "b"), None, 30, "scp", "sub", 3_600_000, 100, 10_000
    )
    near = {
        f"{OUT}sasl.oauthbearer.jwks.endpoint.url": "file:/keys.json",
        "listener.name.out.sasl.oauthbearer.jwks.endpoint.url": "https://elsewhere.example/",
        "listener.name.out.sasl.oauthbearer.sub.claim.name": "client_id",
        "sasl.oauthbearer.expected.issuer": "me",
        "sasl.oauthbearer.clock.skew.seconds": "0",
        HANDLER: f"{PACKAGE}secured.OAuthBearerValidatorCallbackHandler",
        JAAS: f'{MODULE} ssl.endpoint.identification.algorithm="";',
        URLS: None,
    }
    rules = rules_of(near)
    assert isinstance(rules, TokenRules)
    assert rules.tls is not None
    assert not rules.tls.checks_host_name
    assert (rules.keys_url, rules.issuer, rules.skew_s, rules.sub_claim) == ("file:/keys.json", "me", 0, "client_id")


def test_tokens_without_a_signature_are_for_those_who_ask_for_them() -> None:
    assert rules_of({HANDLER: UNSECURED}) == UnsecuredRules("sub", "scope", (), 0)
    options = 'unsecuredValidatorPrincipalClaimName="name" unsecuredValidatorScopeClaimName="scp"'
    options += ' unsecuredValidatorRequiredScope="a b" unsecuredValidatorAllowableClockSkewMs="3000"'
    given = {HANDLER: UNSECURED, JAAS: f"{MODULE} {options};"}
    assert rules_of(given) == UnsecuredRules("name", "scp", ("a", "b"), 3000)


@pytest.mark.parametrize(
    ("overrides", "complaint"),
    [
        ({HANDLER: None}, f"Invalid value null for configuration {HANDLER}: it must be {SECURED}, or {UNSECURED}"),
        ({HANDLER: "a.B"}, f"Invalid value a.B for configuration {HANDLER}: it must be {SECURED}"),
        ({HANDLER: None, JAAS: f'{MODULE} unsecuredLoginStringClaim_sub="a";'}, f"{HANDLER}: it must be"),
        (
            {HANDLER: None, "sasl.server.callback.handler.class": SECURED},
            "is for the mechanism OAUTHBEARER of a listener",
        ),
        ({"listener.name.out.plain.sasl.server.callback.handler.class": SECURED}, "for the mechanism OAUTHBEARER of a"),
        ({"listener.name.in.oauthbearer.sasl.jaas.config": "x"}, "it is of no listener with SASL"),
        ({"sasl.enabled.mechanisms": "SCRAM-SHA-256"}, "oauthbearer is not a mechanism of the listener"),
        ({JAAS: f"{PACKAGE}X required;"}, "OAUTHBEARER needs the login module"),
        ({"sasl.oauthbearer.jwks.endpoint.url": None}, "endpoint.url: it must say where the issuer's keys are"),
        ({URLS: None}, f"it must be one of those that {URLS} names: it names none"),
        ({URLS: "https://issuer.example"}, f"it must be one of those that {URLS} names: https://issuer.example"),
        ({"sasl.oauthbearer.jwks.endpoint.url": "http://issuer.example/keys"}, "it must begin with https:// or file:/"),
        ({"sasl.oauthbearer.jwks.endpoint.url": "ftp://issuer.example/keys"}, "it must begin with https:// or file:/"),
        ({"sasl.oauthbearer.jwks.endpoint.url": "https:keys"}, "it must begin with https:// or file:/"),
        ({"sasl.oauthbearer.jwks.endpoint.url": "https://[keys"}, "it is not a URL"),
        ({"sasl.oauthbearer.jwks.endpoint.url": "https://host:99999/"}, "it is not a URL"),
        ({"sasl.oauthbearer.jwks.endpoint.url": "https://me:hidden@host/"}, "it must not have a user or a password"),
        ({"sasl.oauthbearer.jwks.endpoint.url": "https://host/a b"}, "no blanks"),
        ({"sasl.oauthbearer.jwks.endpoint.url": "file:keys.json"}, "a file: URL must have the whole path"),
        ({"sasl.oauthbearer.jwks.endpoint.url": "file://host/keys.json"}, "a file: URL must have the whole path"),
        ({"sasl.oauthbearer.jwks.endpoint.refresh.ms": "0"}, "Value must be at least 1000"),
        ({"sasl.oauthbearer.jwks.endpoint.retry.backoff.ms": "0"}, "Value must be at least 1"),
        ({"sasl.oauthbearer.clock.skew.seconds": "-1"}, "Value must be at least 0"),
        ({"sasl.oauthbearer.sub.claim.name": " "}, "it must name a claim"),
        ({JAAS: f'{MODULE} ssl.enabled.protocols="SSLv3";'}, "SSLv3 is not one of"),
        (
            {HANDLER: UNSECURED, JAAS: f'{MODULE} unsecuredValidatorAllowableClockSkewMs="-1";'},
            "unsecuredValidatorAllowableClockSkewMs must be a number",
        ),
        ({**BETWEEN}, f'{JAAS}: it needs a name, unsecuredLoginStringClaim_sub="alice", or '),
        ({**BETWEEN, f"{OUT}sasl.login.callback.handler.class": "a.B"}, f"it must be {LOGIN}, or "),
        ({**BETWEEN, f"{OUT}sasl.login.callback.handler.class": LOGIN}, "it must say where tokens are issued"),
        (
            {
                **BETWEEN,
                f"{OUT}sasl.login.callback.handler.class": LOGIN,
                "sasl.oauthbearer.token.endpoint.url": "https://elsewhere.example/",
            },
            f"it must be one of those that {URLS} names",
        ),
    ],
)
def test_what_stops_the_start(overrides: dict[str, str | None], complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        rules_of(overrides)
    assert complaint in str(caught.value)
    assert "hidden@" not in str(caught.value)


def test_a_listener_for_this_machine_may_do_without_tls() -> None:
    for host in ("localhost", "127.0.0.1", "[::1]"):
        url = f"http://{host}:8080/keys"
        rules = rules_of({"sasl.oauthbearer.jwks.endpoint.url": url, URLS: url})
        assert isinstance(rules, TokenRules)
        assert rules.keys_url == url


def test_brokers_among_themselves() -> None:
    own = {
        f"{OUT}sasl.login.callback.handler.class": LOGIN,
        JAAS: f'{MODULE} clientId="broker" clientSecret="hidden" scope="a b" extension_cluster="1";',
        f"{OUT}sasl.oauthbearer.token.endpoint.url": TOKENS,
    }
    channel = BrokerConfig.of({**BASE, **BETWEEN, **own}).inter_broker_channel
    assert channel is not None
    assert isinstance(channel.login, TokenLogin)
    assert channel.login.mechanism == "OAUTHBEARER"
    assert channel.login.extensions == {"cluster": "1"}
    assert isinstance(channel.login.source, EndpointSource)
    assert channel.login.source[:5] == (TOKENS, "broker", "hidden", "a b", False)
    assert "hidden" not in repr(channel)


def login_of(jaas: str, **others: str) -> TokenLogin:
    given = {"sasl.mechanism": "OAUTHBEARER", "sasl.jaas.config": f"{MODULE} {jaas};"}
    given |= {name.replace("_", "."): value for name, value in others.items()}
    login = client_channel("SASL_PLAINTEXT", given).login
    assert isinstance(login, TokenLogin)
    return login


SECRET = 'clientId="a" clientSecret="hidden"'


def test_clients() -> None:
    names = (
        'unsecuredLoginStringClaim_sub="alice" unsecuredLoginNumberClaim_n="1.5" unsecuredLoginListClaim_scope="|a|b"'
    )
    login = login_of(f'{names} unsecuredLoginExtension_traceId="1" unsecuredLoginLifetimeSeconds="60"')
    assert login.source == UnsecuredSource({"sub": "alice", "n": 1.5, "scope": ("a", "b")}, 60)
    assert login.extensions == {"traceId": "1"}
    file = login_of("", sasl_login_callback_handler_class=LOGIN, sasl_oauthbearer_token_endpoint_url="file:/token")
    assert file.source == FileSource("file:/token")
    given = {"sasl_login_callback_handler_class": LOGIN, "sasl_oauthbearer_token_endpoint_url": TOKENS}
    # As in Kafka 3.9, clients' URLs are restricted only if configured.
    source = login_of(SECRET, **given, sasl_oauthbearer_header_urlencode="true").source
    assert isinstance(source, EndpointSource)
    assert (source.url, source.encodes_credentials) == (TOKENS, True)
    with pytest.raises(ConfigError, match="it must be one of those"):
        login_of(SECRET, **given, org_apache_kafka_sasl_oauthbearer_allowed_urls=KEYS)


@pytest.mark.parametrize(
    ("jaas", "others", "complaint"),
    [
        ("", {}, "it needs a name, unsecuredLoginStringClaim_sub="),
        (SECRET, {}, f"or sasl.login.callback.handler.class={LOGIN}"),
        ('unsecuredLoginNumberClaim_sub="1"', {}, "it needs a name"),
        (
            'unsecuredLoginStringClaim_sub="a" unsecuredLoginNumberClaim_n="x"',
            {},
            "unsecuredLoginNumberClaim_n must be a",
        ),
        ('unsecuredLoginStringClaim_sub="a" unsecuredLoginLifetimeSeconds="0"', {}, "LifetimeSeconds must be a number"),
        ('unsecuredLoginStringClaim_sub="a" unsecuredLoginExtension_auth="x"', {}, "Extension name auth is invalid"),
        ('unsecuredLoginStringClaim_sub="a" unsecuredLoginExtension_a="é"', {}, "the extension a must be printable"),
        ('unsecuredLoginStringClaim_sub="a"', {"sasl_login_refresh_window_factor": "2"}, "between 0.5 and 1.0"),
        ('clientId="a"', {"sasl_login_callback_handler_class": LOGIN, "url": TOKENS}, "it needs the credentials of a"),
        (SECRET, {"sasl_login_callback_handler_class": LOGIN}, "it must say where tokens are issued"),
        (SECRET, {"sasl_login_callback_handler_class": LOGIN, "url": "http://host/"}, "it must begin with https://"),
    ],
)
def test_clients_that_cannot_begin(jaas: str, others: dict[str, str], complaint: str) -> None:
    given = {name.replace("url", "sasl.oauthbearer.token.endpoint.url"): value for name, value in others.items()}
    with pytest.raises(ConfigError) as caught:
        login_of(jaas, **given)
    assert complaint in str(caught.value)
    assert '"hidden"' not in str(caught.value)


def test_a_handler_is_for_no_other_mechanism() -> None:
    plain = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="a" password="b";'
    given = {"sasl.mechanism": "PLAIN", "sasl.jaas.config": plain, "sasl.login.callback.handler.class": LOGIN}
    with pytest.raises(ConfigError, match="it is for the mechanism OAUTHBEARER"):
        client_channel("SASL_PLAINTEXT", given)


def test_allowed_urls_come_from_kafka_opts_too() -> None:
    given = {name: value for name, value in BASE.items() if name != URLS}
    options = f"-Xmx1G -D{URLS}={KEYS},{TOKENS}"
    config = BrokerConfig.of(with_jaas_file(given, options, lambda _path: ""))
    assert config.sasl["OUT"].tokens is not None
    assert URLS not in config.unknown() + config.without_effect()
