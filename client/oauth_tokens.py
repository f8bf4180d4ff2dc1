"""OAUTHBEARER tokens for a client (Kafka classes `OAuthBearerLoginCallbackHandler`,
`ExpiringCredentialRefreshingLogin`).
"""

from __future__ import annotations

import base64
import json
import logging
import ssl
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from client.environment import pause, system_random, wall_clock_s
from security.oauth import TIMEOUT_S, EndpointSource, TokenLogin, UnsecuredSource, WebError, fetch
from security.sasl_exchange import ClientExchange, ServerError
from security.tls import client_context

logger = logging.getLogger("kafka.security.OAuthBearerLogin")

_MAX_ATTEMPTS_S: Final = 30.0
"""The longest time to retry a token request before the connection fails."""


class HeldToken(NamedTuple):
    """A token, its expiry, and the time to refresh it (seconds since 1970)."""

    text: str
    ends_s: float
    refresh_s: float


class TokenHolder:
    """Provides a token for each connection, and refreshes it in time. Only one thread at a time may use it."""

    def __init__(self, login: TokenLogin) -> None:
        """Raises ConfigError for unusable TLS stores."""
        self._login = login
        tls = getattr(login.source, "tls", None)
        self._context = None if tls is None else client_context(tls)
        self._random = system_random()
        self._held: HeldToken | None = None

    def exchange(self) -> ClientExchange:
        """Authenticates with the token. Run it off the event loop: it may have to fetch the token."""
        pairs = "".join(f"\x01{name}={value}" for name, value in self._login.extensions.items())
        answer = yield f"n,,\x01auth=Bearer {self.token()}{pairs}\x01\x01".encode()
        if answer:
            # RFC 7628: the server first describes the error, and refuses the token in its next response.
            yield b"\x01"

    def token(self) -> str:
        """A token that has not expired. Raises ServerError if none is available."""
        now_s, held = wall_clock_s(), self._held
        if held is not None and now_s < held.refresh_s:
            return held.text
        try:
            self._held = held = self._hold(self._new_token(), now_s)
        except WebError as error:
            if held is None or now_s >= held.ends_s:
                raise ServerError(f"no token: {error}") from error
            logger.warning("Cannot renew the token, which is valid for another %d s: %s", held.ends_s - now_s, error)
        return held.text

    def _new_token(self) -> str:
        source = self._login.source
        if isinstance(source, UnsecuredSource):
            return unsecured_text(source, wall_clock_s())
        if not isinstance(source, EndpointSource):
            return fetch(source.url).decode("ascii", "replace").strip()
        spent_s, pause_s = 0.0, source.retry_ms / 1000
        while True:
            try:
                return ask_endpoint(source, self._context)
            except WebError as error:
                if error.is_final or spent_s + pause_s > min(_MAX_ATTEMPTS_S, source.retry_max_ms / 1000):
                    raise
            pause(pause_s)
            spent_s += pause_s
            pause_s = max(2 * pause_s, 0.001)

    def _hold(self, text: str, now_s: float) -> HeldToken:
        """Schedule the refresh of a new token. Raises WebError for an invalid token, or one without an expiry."""
        ends_s = end_of(text)
        if ends_s <= now_s:
            raise WebError("the new token has expired already")
        refresh, life_s = self._login.refresh, ends_s - now_s
        after_s = life_s * (refresh.factor + self._random.uniform(0, refresh.jitter))
        # As in Kafka: both limits are ignored if the lifetime is too short for both.
        if life_s > refresh.min_period_s + refresh.buffer_s:
            after_s = max(min(after_s, life_s - refresh.buffer_s), refresh.min_period_s)
        return HeldToken(text, ends_s, now_s + min(after_s, life_s))


def ask_endpoint(source: EndpointSource, context: ssl.SSLContext | None) -> str:
    """Fetch a token from the server's endpoint. Raises WebError (Kafka class `HttpAccessTokenRetriever`)."""
    from urllib.parse import quote_plus, urlencode

    encode: Callable[[str], str] = quote_plus if source.encodes_credentials else str
    credentials = f"{encode(source.client_id)}:{encode(source.client_secret)}"
    form = {"grant_type": "client_credentials"} | ({"scope": source.scope} if source.scope else {})
    content = fetch(
        source.url,
        context,
        form=urlencode(form),
        headers={
            "Authorization": f"Basic {base64.b64encode(credentials.encode()).decode()}",
            "Cache-Control": "no-cache",
            "Content-Type": "application/x-www-form-urlencoded",
        },
        connect_timeout_s=source.connect_timeout_s or TIMEOUT_S,
        read_timeout_s=source.read_timeout_s or TIMEOUT_S,
    )
    try:
        found: Any = json.loads(content)
    except (ValueError, RecursionError):
        found = None
    token = found.get("access_token") if isinstance(found, dict) else None
    if not isinstance(token, str) or not token:
        raise WebError(f"{source.url} answers without an access_token", is_final=True)
    return token.strip()


def end_of(token: str) -> float:
    """The expiry of a token, in seconds since 1970. Raises WebError for an invalid token, or one without an expiry."""
    parts = token.split(".")
    try:
        claims: Any = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        ends_s = claims["exp"]
    except (IndexError, KeyError, TypeError, ValueError, RecursionError):
        raise WebError("the source did not return a JWT with an exp claim", is_final=True) from None
    if len(parts) != 3 or not set(token) <= _LETTERS or isinstance(ends_s, bool) or not isinstance(ends_s, int | float):
        raise WebError("the source did not return a JWT with an exp claim", is_final=True)
    return float(ends_s)


def unsecured_text(source: UnsecuredSource, now_s: float) -> str:
    """An unsigned token."""
    claims = {"iat": now_s, "exp": now_s + source.lifetime_s, **source.claims}
    encoded = [base64.urlsafe_b64encode(json.dumps(each).encode()).decode() for each in ({"alg": "none"}, claims)]
    return ".".join(each.rstrip("=") for each in encoded) + "."


_LETTERS: Final = frozenset("-_.ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789")
