"""Validation of OAUTHBEARER tokens on a listener (Kafka class `OAuthBearerValidatorCallbackHandler`)."""

from __future__ import annotations

import functools
import logging
from typing import Any, Final

from broker.broker_environment import Environment
from broker.security.issuer_keys import ALGORITHMS, IssuerKeys, parse_keys
from config.definitions import ConfigError
from environment.contract import Clock, Executor
from security.bearer_exchange import (
    BearerExchange,
    BearerToken,
    TokenError,
    ValidateToken,
    check_audience,
    check_times,
    decoded_object,
    json_object,
    parts_of,
    scope_of,
    subject_of,
    unsecured_token,
)
from security.oauth import TokenRules, UnsecuredRules, WebError, fetch
from security.tls import client_context

logger = logging.getLogger("kafka.security.OAuthBearerSaslServer")

READ_TIMEOUT_S: Final = 5.0
"""Read timeout for the issuer's keys."""


class Tokens:
    """Token validation of one listener. `keys` are the issuer's keys, if tokens are signed."""

    def __init__(self, validate: ValidateToken, keys: IssuerKeys | None) -> None:
        self._validate = validate
        self.keys = keys

    def exchange(self) -> BearerExchange:
        """Start the authentication of a client."""
        return BearerExchange(self._validate, _log_refusal)


def tokens_of(rules: TokenRules | UnsecuredRules, environment: Environment) -> Tokens:
    """Set up validation by these rules. Raises ConfigError for unusable TLS stores, and for a file without keys.

    Endpoints are not contacted here: until one answers, tokens are refused.
    """
    if isinstance(rules, UnsecuredRules):
        return Tokens(functools.partial(_unsecured, rules, environment.clock), None)
    import jwt  # noqa: F401  imported at the start, so that the first token does not wait for it

    context = None if rules.tls is None else client_context(rules.tls)
    if rules.keys_url.startswith("file:"):
        try:
            parse_keys(fetch(rules.keys_url))
        except (WebError, TokenError) as error:
            raise ConfigError(rules.url_name, rules.keys_url, str(error)) from error
    read = functools.partial(
        fetch, rules.keys_url, context, connect_timeout_s=READ_TIMEOUT_S, read_timeout_s=READ_TIMEOUT_S
    )
    times_ms = rules.refresh_ms, rules.retry_ms, rules.retry_max_ms
    keys = IssuerKeys(read, environment.executor, environment.clock, *times_ms)
    return Tokens(TokenValidator(rules, keys, environment.executor, environment.clock).validate, keys)


class TokenValidator:
    """Validates signed tokens."""

    def __init__(self, rules: TokenRules, keys: IssuerKeys, executor: Executor, clock: Clock) -> None:
        self._rules = rules
        self._keys = keys
        self._executor = executor
        self._clock = clock

    async def validate(self, token: str) -> BearerToken:
        """See `ValidateToken`. Checks everything that works without a key first."""
        rules = self._rules
        header = decoded_object(parts_of(token)[0], "header")
        algorithm, kid = header.get("alg"), header.get("kid")
        if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
            raise TokenError(f"its algorithm is not one of {', '.join(sorted(ALGORITHMS))}")
        if not isinstance(kid, str | None):
            raise TokenError("kid is not a string")
        if "crit" in header or "b64" in header:
            raise TokenError("its header has extensions that are not known here")
        # Check the claims before the signature: expired tokens must not trigger requests to the endpoint.
        self._check(decoded_object(parts_of(token)[1], "claims"))
        key = await self._keys.find(kid, algorithm)
        content = await self._executor.run(_verified, token, key.public, algorithm)
        claims = json_object(content, "claims")
        expires_ms = self._check(claims)
        return BearerToken(subject_of(claims, rules.sub_claim), expires_ms)

    def _check(self, claims: dict[str, Any]) -> int:
        """The expiry time of a token with these claims, in milliseconds since 1970. Raises TokenError."""
        rules = self._rules
        expires_ms = check_times(claims, self._clock.now_ms(), rules.skew_s * 1000, needs_issue=True)
        if rules.issuer is not None and claims.get("iss") != rules.issuer:
            raise TokenError("its issuer is not sasl.oauthbearer.expected.issuer")
        check_audience(claims, rules.audiences)
        scope_of(claims, rules.scope_claim)
        subject_of(claims, rules.sub_claim)
        return expires_ms


def _verified(token: str, key: Any, algorithm: str) -> bytes:
    """The claims of a token that `key` has signed. Raises TokenError."""
    from jwt import PyJWS
    from jwt.exceptions import PyJWTError

    try:
        payload: bytes = PyJWS(algorithms=[algorithm]).decode_complete(token, key, algorithms=[algorithm])["payload"]
    except (PyJWTError, ValueError, TypeError, OverflowError, RecursionError) as error:
        raise TokenError(f"its signature does not hold: {error}") from error
    return payload


async def _unsecured(rules: UnsecuredRules, clock: Clock, token: str) -> BearerToken:
    return unsecured_token(token, clock.now_ms(), rules)


def _log_refusal(reason: str) -> None:
    logger.info("A token is refused: %s", reason)
