"""SASL DIGEST-MD5 (RFC 2831) without a security layer, as ZooKeeper and its clients speak it."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Callable, Mapping
from typing import Final

from security.jaas import DigestLogin

_URI = "zookeeper/zk-sasl-md5"
_REALM: Final = "zk-sasl-md5"
_FIELD = re.compile(rb'\s*([a-z-]+)=(?:"((?:[^"\\]|\\.)*)"|([^",]*))\s*(?:,|\Z)')
_FIRST_USE: Final = "00000001"


class ChallengeError(Exception):
    """The server requires something else."""


class DigestAuthenticationError(Exception):
    """The client's proof is wrong, or its message violates the protocol."""


class DigestMd5Client:
    """One authentication with `login`: answer the challenge, then check that the server knows the password, too."""

    def __init__(self, login: DigestLogin, nonce: Callable[[], str], uri: str = _URI) -> None:
        """`nonce` returns unpredictable text."""
        self._login = login
        self._nonce = nonce()
        self._uri = uri
        self._proof = b""

    @property
    def username(self) -> str:
        """The user name of the login."""
        return self._login.username

    def answer(self, challenge: bytes) -> bytes:
        """The response to the server's first message. Raises ChallengeError."""
        try:
            fields = _fields(challenge)
            realm, nonce = fields["realm"], fields["nonce"]
        except (KeyError, UnicodeError) as error:
            raise ChallengeError("it does not answer with a challenge of DIGEST-MD5") from error
        if fields.get("algorithm") != "md5-sess" or "auth" not in fields.get("qop", "auth").split(","):
            raise ChallengeError("it wants DIGEST-MD5 with another algorithm or protection")
        username = self._login.username
        quoted = {"username": username, "realm": realm, "nonce": nonce, "cnonce": self._nonce, "digest-uri": self._uri}
        digest = _digests(self._login, quoted)
        self._proof = f"rspauth={digest('')}".encode()
        texts = [f'{name}="{_escaped(value)}"' for name, value in quoted.items()]
        parts = ["charset=utf-8", *texts, f"nc={_FIRST_USE}", "qop=auth", f"response={digest('AUTHENTICATE')}"]
        return ",".join(parts).encode()

    def is_proven_by(self, message: bytes) -> bool:
        """Whether the server's last message proves that it knows the password."""
        return bool(self._proof) and message == self._proof


class DigestMd5Server:
    """One authentication against `users`, a map from names to passwords."""

    def __init__(self, users: Mapping[str, str], nonce: Callable[[], str]) -> None:
        """`nonce` returns unpredictable text."""
        self._users = users
        self._nonce = nonce()
        self.username: str | None = None
        """The authenticated user, or None before that."""

    def evaluate(self, message: bytes) -> bytes:
        """The challenge after a first, empty message; the server's own proof after the second. Raises RefusedError."""
        if not message and self.username is None:
            challenge = f'realm="{_REALM}",nonce="{self._nonce}",qop="auth",charset=utf-8,algorithm=md5-sess'
            return challenge.encode()
        try:
            fields = _fields(message)
            username, response = fields["username"], fields["response"]
            answers_this = (fields["realm"], fields["nonce"], fields["nc"]) == (_REALM, self._nonce, _FIRST_USE)
            digest = _digests(DigestLogin(username, self._users.get(username, "")), fields)
        except (KeyError, UnicodeError) as error:
            raise DigestAuthenticationError("it does not answer the challenge") from error
        if not answers_this or fields.get("qop", "auth") != "auth" or self.username is not None:
            raise DigestAuthenticationError(f"the answer of {username} is to another challenge")
        is_right = hmac.compare_digest(digest("AUTHENTICATE").encode(), response.encode())
        if username not in self._users or not is_right:
            raise DigestAuthenticationError(f"there is no user {username} with this password")
        self.username = username
        return f"rspauth={digest('')}".encode()


def _fields(message: bytes) -> dict[str, str]:
    """The fields of a message. Raises UnicodeError."""
    found = ((match[1], match[2] if match[2] is not None else match[3]) for match in _FIELD.finditer(message))
    return {name.decode(): re.sub(r"\\(.)", r"\1", value.decode()) for name, value in found}


def _digests(login: DigestLogin, fields: Mapping[str, str]) -> Callable[[str], str]:
    """Return a function from a side's keyword to its proof. Raises KeyError."""
    nonce, own, uri, authzid = fields["nonce"], fields["cnonce"], fields["digest-uri"], fields.get("authzid")
    secret = (
        _md5(b":".join(map(_bytes, (login.username, fields["realm"], login.password)))) + f":{nonce}:{own}".encode()
    )
    if authzid is not None:
        secret += f":{authzid}".encode()
    key = _md5(secret).hex()

    def digest(method: str) -> str:
        what = _md5(f"{method}:{uri}".encode()).hex()
        return _md5(f"{key}:{nonce}:{_FIRST_USE}:{own}:auth:{what}".encode()).hex()

    return digest


def _md5(data: bytes) -> bytes:
    return hashlib.md5(data).digest()  # noqa: S324 - required by the mechanism


def _bytes(text: str) -> bytes:
    """Encode as Latin-1 if possible, else as UTF-8, as the RFC requires for hashed names."""
    try:
        return text.encode("latin-1")
    except UnicodeEncodeError:
        return text.encode()


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')
