"""Both sides of SASL/GSSAPI, without sockets (RFC 4752; Java's `GssKrb5Server`, `GssKrb5Client`). Runs off the event
loop.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from security.kerberos_login import GssContext, GssError, Initiator
from security.principals import NoNameError, ShortNames
from security.sasl_exchange import ClientExchange, SaslAuthenticationError, ServerError

MAX_TOKEN_BYTES: Final = 65_536
"""Larger than any ticket: Windows, with the largest ones, allows 65,535."""
_NO_LAYER: Final = 1
_OFFER: Final = bytes((_NO_LAYER, 0, 0, 0))
"""Neither integrity nor confidentiality, which TLS provides; therefore the maximum buffer size is 0."""
_WRONG: Final = "Authentication failed during authentication due to invalid credentials with SASL mechanism GSSAPI"

OffLoop = Callable[[Callable[[bytes], bytes], bytes], Awaitable[bytes]]
"""Runs a function with a token on a thread where it may block."""


class GssapiExchange:
    """A ticket in one or more tokens, then the agreement not to use a security layer.

    The client only learns that authentication failed; the reason is for the log.
    """

    def __init__(self, context: GssContext, names: ShortNames, default_realm: str, off_loop: OffLoop) -> None:
        """`context` is new; the rule DEFAULT applies to principals of `default_realm`."""
        self._context = context
        self._names = names
        self._default_realm = default_realm
        self._off_loop = off_loop
        self._has_offered = False
        self.user: str | None = None
        self.credential_expiry_ms: int | None = None
        self.has_token = False

    async def respond(self, token: bytes) -> bytes:
        """See `security.sasl_exchange.Exchange`."""
        if len(token) > MAX_TOKEN_BYTES:
            raise SaslAuthenticationError(_WRONG, f"a token has {len(token)} bytes")
        try:
            return await self._off_loop(self._respond, token)
        except (GssError, NoNameError) as error:
            raise SaslAuthenticationError(_WRONG, str(error)) from error

    def _respond(self, token: bytes) -> bytes:
        if self._has_offered:
            return self._finish(token)
        if self._context.is_complete:
            if token:
                raise GssError("a token came after the last one")
        else:
            if not token:
                raise GssError("an empty token came")
            answer = self._context.step(token)
            # After a response, the client sends an empty token before it gets the offer.
            if answer or not self._context.is_complete:
                return answer
        self._has_offered = True
        return self._context.wrap(_OFFER)

    def _finish(self, token: bytes) -> bytes:
        message = self._context.unwrap(token)
        if len(message) < len(_OFFER) or not message[0] & _NO_LAYER:
            raise GssError("the client does not agree to have no security layer")
        # Ignore the authorization id after the first four bytes, as Kafka does (`SaslServerCallbackHandler`).
        user = self._names.name_of(_plain(self._context.initiator()), self._default_realm)
        if not user:
            raise NoNameError(f"the rules make an empty name of {self._context.initiator()}")
        self.user = user
        return b""


def _plain(principal: str) -> str:
    """A principal in the form that rules expect. Raises NoNameError if a component contains an escaped character, such
    as a slash: rules could not tell it from a separator.
    """
    if "\\" in principal:
        raise NoNameError(f"the principal {principal} has signs in it that no rule can read")
    return principal


_CHOICE: Final = bytes((_NO_LAYER, 0, 0, 0))
"""Without a security layer, so the maximum buffer size is 0, and without an authorization id: the client acts as
itself.
"""


def gssapi_tokens(initiator: Initiator, host: str) -> ClientExchange:
    """The client's tokens for the broker on `host`, with mutual authentication. Raises ServerError."""
    try:
        context = initiator.context(host)
        answer = yield context.step(b"")
        while not context.is_complete:
            answer = yield context.step(answer)
        offer = context.unwrap(answer)
        if not offer or not offer[0] & _NO_LAYER:
            raise ServerError("the server wants a security layer, and there is none")
        yield context.wrap(_CHOICE)
    except GssError as error:
        raise ServerError(str(error)) from error
