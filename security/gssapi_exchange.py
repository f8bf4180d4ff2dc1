"""SASL/GSSAPI on both sides, without sockets (RFC 4752; Java's `GssKrb5Server`, `GssKrb5Client`). Runs off the event
loop.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from security.kerberos_login import GssContext, GssError, Initiator
from security.principals import NoNameError, ShortNames
from security.sasl_exchange import AuthenticationError, ClientExchange, ServerError

MAX_TOKEN_BYTES: Final = 65_536
"""Above any ticket: Windows, whose tickets are the largest, allows 65,535."""
_NO_LAYER: Final = 1
_OFFER: Final = bytes((_NO_LAYER, 0, 0, 0))
"""Neither integrity nor confidentiality, which is TLS's task; and so a buffer of nothing."""
_WRONG: Final = "Authentication failed during authentication due to invalid credentials with SASL mechanism GSSAPI"

OffLoop = Callable[[Callable[[bytes], bytes], bytes], Awaitable[bytes]]
"""Calls a function with a token where it blocks nobody."""


class GssapiExchange:
    """A ticket in one token or more, then the agreement that no security layer follows.

    The client is told nothing but that it is not let in; the reason is for the log.
    """

    def __init__(self, context: GssContext, names: ShortNames, default_realm: str, off_loop: OffLoop) -> None:
        """`context` is new; `default_realm` is the one that the rule DEFAULT is for."""
        self._context = context
        self._names = names
        self._default_realm = default_realm
        self._off_loop = off_loop
        self._has_offered = False
        self.user: str | None = None
        self.credential_expiry_ms: int | None = None
        self.has_token = False

    async def respond(self, token: bytes) -> bytes:
        """See `ClientExchange`."""
        if len(token) > MAX_TOKEN_BYTES:
            raise AuthenticationError(_WRONG, f"a token has {len(token)} bytes")
        try:
            return await self._off_loop(self._respond, token)
        except (GssError, NoNameError) as error:
            raise AuthenticationError(_WRONG, str(error)) from error

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
            # A client that is answered sends an empty token before it is made the offer.
            if answer or not self._context.is_complete:
                return answer
        self._has_offered = True
        return self._context.wrap(_OFFER)

    def _finish(self, token: bytes) -> bytes:
        message = self._context.unwrap(token)
        if len(message) < len(_OFFER) or not message[0] & _NO_LAYER:
            raise GssError("the client does not agree to have no security layer")
        # As in Kafka (`SaslServerCallbackHandler`), whom the client asks to be, after those four bytes, does not count.
        user = self._names.name_of(_plain(self._context.initiator()), self._default_realm)
        if not user:
            raise NoNameError(f"the rules make an empty name of {self._context.initiator()}")
        self.user = user
        return b""


def _plain(principal: str) -> str:
    """A principal as rules read it. Raises NoNameError where a slash, or another sign, is part of a component: the
    rules could not tell it from one between components.
    """
    if "\\" in principal:
        raise NoNameError(f"the principal {principal} has signs in it that no rule can read")
    return principal


_CHOICE: Final = bytes((_NO_LAYER, 0, 0, 0))
"""No security layer, and so a buffer of nothing; who the client wants to be is not said: it is who it is."""


def gssapi_tokens(initiator: Initiator, host: str) -> ClientExchange:
    """The tokens for the broker on `host`, which has to prove that it is that broker. Raises ServerError."""
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
