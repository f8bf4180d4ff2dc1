"""The client's side of GSSAPI, without sockets (RFC 4752). To be run off the event loop."""

from __future__ import annotations

from typing import Final

from client.security.sasl_tokens import Exchange, ServerError
from config.security.kerberos.library import GssError, Initiator

_NO_LAYER: Final = 1
_CHOICE: Final = bytes((_NO_LAYER, 0, 0, 0))
"""No security layer, and so a buffer of nothing; who the client wants to be is not said: it is who it is."""


def gssapi_tokens(initiator: Initiator, host: str) -> Exchange:
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
