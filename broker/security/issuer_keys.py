"""Public keys of a token issuer, read periodically from its JWKS endpoint (Kafka class `RefreshingHttpsJwks`)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from environment.contract import Clock, Executor
from security.bearer_exchange import TokenError, json_object
from security.oauth import WebError

logger = logging.getLogger("kafka.security.OAuthBearerValidatorCallbackHandler")

CHECK_MS: Final = 1_000
"""Interval of the checks whether the keys are due for a refresh."""
UNKNOWN_KEY_S: Final = 10.0
"""Minimum interval between refreshes triggered by tokens with unknown keys, for all clients together."""
WAIT_S: Final = 8.0
"""Maximum time a client waits for such a refresh; it may take 10 s to authenticate."""
MAX_KEYS: Final = 256
_MIN_RSA_BITS: Final = 2048
_ALGORITHMS: Final = {
    "RSA": frozenset({"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"}),
    "P-256": frozenset({"ES256"}),
    "P-384": frozenset({"ES384"}),
    "P-521": frozenset({"ES512"}),
}
"""Algorithms by key type or curve. Symmetric keys are excluded: a key that verifies must not be able to sign."""
ALGORITHMS: Final = frozenset().union(*_ALGORITHMS.values())


class IssuerKey(NamedTuple):
    """A public key, and the signature algorithms that it may be used with."""

    kid: str | None
    public: Any
    algorithms: frozenset[str]


class IssuerKeys:
    """The keys at one URL. If a refresh fails, the last keys stay valid.

    Owned by the event loop.
    """

    def __init__(
        self,
        read: Callable[[], bytes],
        executor: Executor,
        clock: Clock,
        refresh_ms: int,
        retry_ms: int,
        retry_max_ms: int,
    ) -> None:
        """`read` returns the content of the URL, or raises WebError. Pauses after failures start at `retry_ms` and
        double up to `retry_max_ms`.
        """
        self._read = read
        self._executor = executor
        self._clock = clock
        self._refresh_ms = refresh_ms
        self._retry_ms = retry_ms
        self._retry_max_ms = retry_max_ms
        self._keys: tuple[IssuerKey, ...] = ()
        self._reading: asyncio.Task[None] | None = None
        self._next_s = 0.0
        """The earliest time for a refresh triggered by a token."""
        self._due_s = 0.0
        """The time of the next regular refresh."""
        self._failures = 0

    async def find(self, kid: str | None, algorithm: str) -> IssuerKey:
        """The key of a token. An unknown key triggers a refresh, within limits. Raises TokenError."""
        found = self._look_up(kid, algorithm)
        if found is None and self._clock.monotonic_s() >= self._next_s:
            try:
                await asyncio.wait_for(asyncio.shield(self._shared_read()), WAIT_S)
            except TimeoutError:
                logger.warning("The issuer's keys are not there in time")
            found = self._look_up(kid, algorithm)
        if found is None:
            raise TokenError(
                "no key of the issuer is that of the token" if self._keys else "the issuer's keys are unknown"
            )
        return found

    async def refresh(self) -> None:
        """Read the keys if a refresh is due."""
        if self._clock.monotonic_s() >= self._due_s:
            await self._shared_read()

    def _look_up(self, kid: str | None, algorithm: str) -> IssuerKey | None:
        """The matching key. A token without `kid` is accepted only if exactly one key matches."""
        fitting = [each for each in self._keys if algorithm in each.algorithms and kid in (None, each.kid)]
        return fitting[0] if len(fitting) == 1 else None

    def _shared_read(self) -> asyncio.Task[None]:
        """Start a read, or join the running one."""
        if self._reading is None or self._reading.done():
            self._reading = asyncio.ensure_future(self._read_once())
        return self._reading

    async def _read_once(self) -> None:
        try:
            content = await self._executor.run(self._read)
            self._keys = await self._executor.run(parse_keys, content)
        except (WebError, TokenError) as error:
            pause_ms = min(self._retry_ms * 2 ** min(self._failures, 30), max(self._retry_max_ms, self._retry_ms))
            self._failures += 1
            self._next_s = self._due_s = self._clock.monotonic_s() + pause_ms / 1000
            known = f"{len(self._keys)} keys of before count" if self._keys else "all tokens are refused"
            logger.warning("The issuer's keys cannot be read, %s: %s", known, error)
            return
        self._failures = 0
        self._next_s = self._clock.monotonic_s() + UNKNOWN_KEY_S
        self._due_s = self._clock.monotonic_s() + self._refresh_ms / 1000
        logger.debug("The issuer has %d keys", len(self._keys))


def parse_keys(content: bytes) -> tuple[IssuerKey, ...]:
    """The keys of a JWKS (RFC 7517) that can verify tokens. Raises TokenError if none can."""
    listed = json_object(content, "JWKS").get("keys")
    if not isinstance(listed, list):
        raise TokenError("its JWKS has no keys")
    found = [key for each in listed[:MAX_KEYS] if (key := _parse_key(each)) is not None]
    if not found:
        kinds = "RSA keys of 2,048 bits and keys of the curves P-256, P-384 and P-521"
        raise TokenError(f"none of the keys in its JWKS can be used; those that can are {kinds}")
    return tuple(found)


def _parse_key(given: Any) -> IssuerKey | None:
    """Parse a key; returns None if it cannot verify tokens."""
    from jwt import PyJWK
    from jwt.exceptions import PyJWTError

    if not isinstance(given, dict) or given.get("use", "sig") != "sig" or "d" in given:
        return None
    kind = given.get("crv") if given.get("kty") == "EC" else given.get("kty")
    algorithms = _ALGORITHMS.get(kind, frozenset()) if isinstance(kind, str) else frozenset()
    if "alg" in given:
        algorithms &= {given["alg"]} if isinstance(given["alg"], str) else frozenset()
    kid, operations = given.get("kid"), given.get("key_ops", ["verify"])
    if (
        not algorithms
        or not isinstance(kid, str | None)
        or not isinstance(operations, list)
        or "verify" not in operations
    ):
        return None
    try:
        public = PyJWK.from_dict(given, algorithm=min(algorithms)).key
    except (PyJWTError, ValueError, TypeError, OverflowError):
        return None
    if kind == "RSA" and public.key_size < _MIN_RSA_BITS:
        return None
    return IssuerKey(kid, public, algorithms)
