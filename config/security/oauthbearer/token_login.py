"""Where one who connects has its token (Kafka classes `OAuthBearerLoginCallbackHandler` and
`OAuthBearerUnsecuredLoginCallbackHandler`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from config.definitions import ConfigError, ConfigKey, ConfigType
from config.security.oauthbearer.token_rules import MECHANISM, FindKey, number_of
from config.security.oauthbearer.urls import checked_url
from config.security.ssl_config import ClientSsl

HANDLER_KEY: Final = "sasl.login.callback.handler.class"
_PACKAGE: Final = "org.apache.kafka.common.security.oauthbearer."
SECURED: Final = f"{_PACKAGE}OAuthBearerLoginCallbackHandler"
UNSECURED: Final = f"{_PACKAGE}internals.unsecured.OAuthBearerUnsecuredLoginCallbackHandler"
_OLD_NAME: Final = f"{_PACKAGE}secured.OAuthBearerLoginCallbackHandler"
_OPTION: Final = "unsecuredLogin"
URLENCODE: Final = ConfigKey(
    "sasl.oauthbearer.header.urlencode",
    ConfigType.BOOLEAN,
    False,
    "Whether a client's credentials are encoded as in URLs.",
)
"""Clients have it, brokers do not (KAFKA-16345)."""
_EXTENSION_NAME: Final = re.compile(r"(?!auth\Z)[A-Za-z]+")
_EXTENSION_VALUE: Final = re.compile(r"[\x21-\x7e \t\r\n]+")

ClaimValue = str | float | tuple[str, ...]


class EndpointSource(NamedTuple):
    """A server that gives tokens for the credentials of a client (the grant `client_credentials`)."""

    url: str
    client_id: str
    client_secret: str
    scope: str | None
    encodes_credentials: bool
    """Whether id and secret are encoded as in URLs."""
    tls: ClientSsl | None
    connect_timeout_s: float | None
    read_timeout_s: float | None
    retry_ms: int
    retry_max_ms: int

    def __repr__(self) -> str:
        return f"EndpointSource({self.url}, {self.client_id})"


class FileSource(NamedTuple):
    """A file with a token, which somebody else writes anew in time."""

    url: str


class UnsecuredSource(NamedTuple):
    """Tokens that one makes oneself and nobody has signed: for tests."""

    claims: Mapping[str, ClaimValue]
    lifetime_s: int


class Refresh(NamedTuple):
    """When a token makes room for another one: after `factor`, and a random part up to `jitter`, of its life."""

    factor: float
    jitter: float
    min_period_s: int
    buffer_s: int


class TokenLogin(NamedTuple):
    """Who one is towards a server. `extensions` are sent with the token (KIP-342)."""

    source: EndpointSource | FileSource | UnsecuredSource
    extensions: Mapping[str, str]
    refresh: Refresh

    @property
    def mechanism(self) -> str:
        """See `config.security.sasl_config.Login`."""
        return MECHANISM


def parse_token_login(
    find: FindKey,
    handler: tuple[str, str | None],
    module: tuple[str, Mapping[str, str]],
    allowed: frozenset[str] | None,
    tls: ClientSsl | None,
) -> TokenLogin:
    """The login. The arguments are as those of `parse_token_rules`. Raises ConfigError."""
    name, class_name = handler
    jaas_name, options = module
    if class_name in (SECURED, _OLD_NAME):
        source: EndpointSource | FileSource | UnsecuredSource = _secured(find, jaas_name, options, allowed, tls)
        extensions = _extensions(jaas_name, options, "extension_")
    elif class_name in (UNSECURED, None, ""):
        source = _unsecured(jaas_name, options)
        extensions = _extensions(jaas_name, options, f"{_OPTION}Extension_")
    else:
        raise ConfigError(name, class_name, f"it must be {SECURED}, or {UNSECURED} for a token that nobody has signed")
    refresh = Refresh(
        _fraction(find, "sasl.login.refresh.window.factor", 0.5, 1.0),
        _fraction(find, "sasl.login.refresh.window.jitter", 0.0, 0.25),
        number_of(find, "sasl.login.refresh.min.period.seconds"),
        number_of(find, "sasl.login.refresh.buffer.seconds"),
    )
    return TokenLogin(source, extensions, refresh)


def _secured(
    find: FindKey,
    jaas_name: str,
    options: Mapping[str, str],
    allowed: frozenset[str] | None,
    tls: ClientSsl | None,
) -> EndpointSource | FileSource:
    url_name, url = find("sasl.oauthbearer.token.endpoint.url")
    if not isinstance(url, str) or not url.strip():
        raise ConfigError(url_name, None, "it must say where tokens are issued, such as https://HOST/token")
    url = checked_url(url_name, url.strip(), allowed)
    if url.startswith("file:"):
        return FileSource(url)
    client_id, secret = options.get("clientId", "").strip(), options.get("clientSecret", "").strip()
    if not client_id or not secret:
        raise ConfigError(
            jaas_name, "[hidden]", 'it needs the credentials of a client: clientId="..." clientSecret="..."'
        )
    encodes = find(URLENCODE.name)[1] is True
    connect_ms, read_ms = find("sasl.login.connect.timeout.ms")[1], find("sasl.login.read.timeout.ms")[1]
    return EndpointSource(
        url,
        client_id,
        secret,
        options.get("scope", "").strip() or None,
        encodes,
        tls,
        connect_ms / 1000 if isinstance(connect_ms, int) and connect_ms > 0 else None,
        read_ms / 1000 if isinstance(read_ms, int) and read_ms > 0 else None,
        number_of(find, "sasl.login.retry.backoff.ms"),
        number_of(find, "sasl.login.retry.backoff.max.ms"),
    )


def _unsecured(jaas_name: str, options: Mapping[str, str]) -> UnsecuredSource:
    """Claims are options such as unsecuredLoginStringClaim_sub; the first letter of a list is what separates it."""
    claims: dict[str, ClaimValue] = {}
    for option, value in options.items():
        kind, _, claim = option.partition("Claim_")
        if not option.startswith(_OPTION) or not claim or not value:
            continue
        if kind == f"{_OPTION}String":
            claims[claim] = value
        elif kind == f"{_OPTION}Number":
            claims[claim] = _float(jaas_name, option, value)
        elif kind == f"{_OPTION}List":
            claims[claim] = tuple(value[1:].split(value[0]))
    principal = options.get(f"{_OPTION}PrincipalClaimName", "").strip() or "sub"
    if not isinstance(claims.get(principal), str):
        reason = f'it needs a name, {_OPTION}StringClaim_{principal}="alice", or {HANDLER_KEY}={SECURED}'
        raise ConfigError(jaas_name, "[hidden]", reason)
    seconds = options.get(f"{_OPTION}LifetimeSeconds", "").strip() or "3600"
    if not (seconds.isascii() and seconds.isdecimal() and 0 < int(seconds[:10]) < 2**31):
        raise ConfigError(jaas_name, "[hidden]", f"{_OPTION}LifetimeSeconds must be a number of seconds")
    return UnsecuredSource(claims, int(seconds))


def _extensions(jaas_name: str, options: Mapping[str, str], begin: str) -> dict[str, str]:
    found = {name.removeprefix(begin): value for name, value in options.items() if name.startswith(begin)}
    for name, value in found.items():
        if not _EXTENSION_NAME.fullmatch(name):
            raise ConfigError(
                jaas_name, "[hidden]", f"Extension name {name} is invalid: it must have letters, not auth"
            )
        if not _EXTENSION_VALUE.fullmatch(value):
            raise ConfigError(jaas_name, "[hidden]", f"the value of the extension {name} must be printable ASCII")
    return found


def _fraction(find: FindKey, key: str, low: float, high: float) -> float:
    name, value = find(key)
    if not isinstance(value, float) or not low <= value <= high:
        raise ConfigError(name, value, f"Value must be between {low} and {high}")
    return value


def _float(jaas_name: str, option: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = float("nan")
    if not abs(number) < 2**53:
        raise ConfigError(jaas_name, "[hidden]", f"{option} must be a number")
    return number
