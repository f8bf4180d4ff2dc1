"""Which tokens a listener takes (Kafka classes `OAuthBearerValidatorCallbackHandler` and
`OAuthBearerUnsecuredValidatorCallbackHandler`).

Kafka takes unsigned tokens where no class is named. Here a class has to be named: nobody is let in because a line is
missing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from config.definitions import ConfigError, Value
from config.security.oauthbearer.urls import checked_url
from config.security.ssl_config import ClientSsl

MECHANISM: Final = "OAUTHBEARER"
HANDLER_KEY: Final = "sasl.server.callback.handler.class"
_PACKAGE: Final = "org.apache.kafka.common.security.oauthbearer."
SECURED: Final = f"{_PACKAGE}OAuthBearerValidatorCallbackHandler"
UNSECURED: Final = f"{_PACKAGE}internals.unsecured.OAuthBearerUnsecuredValidatorCallbackHandler"
_OLD_NAME: Final = f"{_PACKAGE}secured.OAuthBearerValidatorCallbackHandler"
_OPTION: Final = "unsecuredValidator"

FindKey = Callable[[str], tuple[str, Value]]
"""The full name and the value of a key, with the prefixes that count."""


class TokenRules(NamedTuple):
    """Signed tokens. `keys_url` has the issuer's keys; `tls` is how to ask there, None for the machine's authorities.

    `url_name` is the key to blame for `keys_url`. Without `issuer` each is taken. Without `audiences` only tokens that
    are for nobody in particular are.
    """

    url_name: str
    keys_url: str
    tls: ClientSsl | None
    audiences: tuple[str, ...]
    issuer: str | None
    skew_s: int
    scope_claim: str
    sub_claim: str
    refresh_ms: int
    retry_ms: int
    retry_max_ms: int


class UnsecuredRules(NamedTuple):
    """Tokens that nobody has signed: for tests."""

    sub_claim: str
    scope_claim: str
    required_scope: tuple[str, ...]
    skew_ms: int


def parse_token_rules(
    find: FindKey,
    handler: tuple[str, str | None],
    module: tuple[str, Mapping[str, str]],
    allowed: frozenset[str],
    tls: ClientSsl | None,
) -> TokenRules | UnsecuredRules:
    """The rules of a listener. `handler` is the name and value of its class's key, `module` the name of the key with
    its login module, and the options there; `allowed` are the URLs that may be asked. Raises ConfigError.
    """
    name, class_name = handler
    if class_name == UNSECURED:
        return _unsecured(*module)
    if class_name not in (SECURED, _OLD_NAME):
        reason = f"it must be {SECURED}, or {UNSECURED} to believe whatever clients say"
        raise ConfigError(name, class_name or None, reason)

    def text(key: str) -> str | None:
        value = find(key)[1]
        return value.strip() or None if isinstance(value, str) else None

    def claim(key: str) -> str:
        found = text(key)
        if found is None:
            raise ConfigError(find(key)[0], "", "it must name a claim")
        return found

    url_name = find("sasl.oauthbearer.jwks.endpoint.url")[0]
    url = text("sasl.oauthbearer.jwks.endpoint.url")
    if url is None:
        raise ConfigError(url_name, None, "it must say where the issuer's keys are, such as https://HOST/keys")
    audiences = find("sasl.oauthbearer.expected.audience")[1]
    retry_name, retry_ms = find("sasl.oauthbearer.jwks.endpoint.retry.backoff.ms")
    if not retry_ms:
        raise ConfigError(retry_name, retry_ms, "Value must be at least 1")
    refresh_name, refresh_ms = find("sasl.oauthbearer.jwks.endpoint.refresh.ms")
    if not isinstance(refresh_ms, int) or refresh_ms < 1000:
        raise ConfigError(refresh_name, refresh_ms, "Value must be at least 1000")
    return TokenRules(
        url_name=url_name,
        keys_url=checked_url(url_name, url, allowed),
        tls=tls,
        audiences=audiences if isinstance(audiences, tuple) else (),
        issuer=text("sasl.oauthbearer.expected.issuer"),
        skew_s=number_of(find, "sasl.oauthbearer.clock.skew.seconds"),
        scope_claim=claim("sasl.oauthbearer.scope.claim.name"),
        sub_claim=claim("sasl.oauthbearer.sub.claim.name"),
        refresh_ms=refresh_ms,
        retry_ms=number_of(find, "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms"),
        retry_max_ms=number_of(find, "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms"),
    )


def number_of(find: FindKey, key: str) -> int:
    """The value of a key that may not be negative. Raises ConfigError."""
    name, value = find(key)
    if not isinstance(value, int) or value < 0:
        raise ConfigError(name, value, "Value must be at least 0")
    return value


def _unsecured(name: str, options: Mapping[str, str]) -> UnsecuredRules:
    skew = options.get(f"{_OPTION}AllowableClockSkewMs", "").strip() or "0"
    if not (skew.isascii() and skew.isdecimal() and len(skew) < 10):
        raise ConfigError(name, "[hidden]", f"{_OPTION}AllowableClockSkewMs must be a number of milliseconds")
    return UnsecuredRules(
        sub_claim=options.get(f"{_OPTION}PrincipalClaimName", "").strip() or "sub",
        scope_claim=options.get(f"{_OPTION}ScopeClaimName", "").strip() or "scope",
        required_scope=tuple(options.get(f"{_OPTION}RequiredScope", "").split()),
        skew_ms=int(skew),
    )
