"""The client's side of SASL, without sockets: PLAIN (RFC 4616) and SCRAM (RFC 5802)."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Generator
from typing import Final

from config.security.sasl_config import Login
from protocol.scram_mechanisms import HASHES, MIN_ITERATIONS

MAX_ITERATIONS: Final = 100_000
"""A server may not have a client hash for ever; Kafka's brokers keep at most 16,384."""
_BASE64: Final = r"[A-Za-z0-9+/]+={0,2}"
_CHALLENGE: Final = re.compile(rf"r=(?P<nonce>[!-+\--~]+),s=(?P<salt>{_BASE64}),i=(?P<iterations>[0-9]{{1,9}})(?:,.*)?")
_HEADER: Final = "n,,"

Exchange = Generator[bytes, bytes, None]
"""Gives the client's tokens and is sent the server's; ends after the last one."""


class ServerError(Exception):
    """The server does not know the password, or makes no sense."""


def exchange(login: Login, nonce: str) -> Exchange:
    """The tokens of `login`; `nonce` is never used again. To be run off the event loop: SCRAM hashes for long.

    Raises ServerError.
    """
    if login.mechanism == "PLAIN":
        return _plain(login)
    return _scram(login, nonce)


def _plain(login: Login) -> Exchange:
    yield f"\0{login.username}\0{login.password}".encode()


def _scram(login: Login, own_nonce: str) -> Exchange:
    name = HASHES[login.mechanism]
    bare = f"n={login.username.replace('=', '=3D').replace(',', '=2C')},r={own_nonce}"
    if login.has_token:
        bare += ",tokenauth=true"
    challenge = _text((yield (_HEADER + bare).encode()))
    found = _CHALLENGE.fullmatch(challenge)
    if found is None:
        raise ServerError("the server's first message is not that of SCRAM")
    nonce, iterations = found["nonce"], int(found["iterations"])
    if not nonce.startswith(own_nonce) or nonce == own_nonce:
        raise ServerError("the server's nonce does not go on from the client's")
    if not MIN_ITERATIONS <= iterations <= MAX_ITERATIONS:
        raise ServerError(f"the server asks for {iterations} iterations: {MIN_ITERATIONS} to {MAX_ITERATIONS} are made")
    salted = hashlib.pbkdf2_hmac(name, login.password.encode(), _decoded(found["salt"]), iterations)
    client_key = hmac.digest(salted, b"Client Key", name)
    unproved = f"c={base64.b64encode(_HEADER.encode()).decode()},r={nonce}"
    message = f"{bare},{challenge},{unproved}".encode()
    signature = hmac.digest(hashlib.new(name, client_key).digest(), message, name)
    proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    last = _text((yield f"{unproved},p={base64.b64encode(proof).decode()}".encode()))
    expected = hmac.digest(hmac.digest(salted, b"Server Key", name), message, name)
    if not last.startswith("v=") or not hmac.compare_digest(_decoded(last[2:].partition(",")[0]), expected):
        raise ServerError("the server does not know the password's credential")


def _text(token: bytes) -> str:
    try:
        return token.decode()
    except UnicodeDecodeError as error:
        raise ServerError("the server's message is not UTF-8") from error


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ServerError("the server's message is not that of SCRAM") from error
