"""Both sides of SASL/PLAIN (RFC 4616) and SASL/SCRAM (RFC 5802), one token after another, without sockets."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Callable, Generator, Mapping
from typing import Final, NamedTuple, Protocol

from protocol.scram_mechanisms import HASHES, MIN_ITERATIONS
from security.sasl_config import Login

MAX_SCRAM_BYTES: Final = 1 << 15
"""A message of 512 KiB, which sasl.server.max.receive.size allows, would block the event loop for 45 ms."""
_BASE64: Final = r"[A-Za-z0-9+/]*={0,2}"
_FIRST: Final = re.compile(
    r"(?P<header>n,(?:a=(?P<authzid>[^,\0]+))?,)(?P<bare>(?:m=[^,]*,)?n=(?P<user>[^,\0]+),r=(?P<nonce>[!-+\--~]+)"
    r"(?P<extensions>(?:,[A-Za-z]+=[^,\0]+)*))"
)
_FINAL: Final = re.compile(
    rf"(?P<unproved>c=(?P<channel>{_BASE64}),r=(?P<nonce>[!-+\--~]+)(?:,[A-Za-z]=[^,\0]+)*),p=(?P<proof>{_BASE64})"
)


class SaslAuthenticationError(Exception):
    """Wrong credentials or a malformed message. The client may see the message, but not `detail`."""

    def __init__(self, message: str, detail: str = "") -> None:
        super().__init__(message)
        self.reason = f"{message}: {detail}" if detail else message
        """For the log."""


class ScramCredential(NamedTuple):
    """The server's stored form of a user's password."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    def to_text(self) -> str:
        """The format in /config/users (`ScramCredentialUtils.credentialToString`)."""
        salt, stored, server = (base64.b64encode(each).decode() for each in self[:3])
        return f"salt={salt},stored_key={stored},server_key={server},iterations={self.iterations}"

    @classmethod
    def from_salted_password(cls, mechanism: str, salted: bytes, salt: bytes, iterations: int) -> ScramCredential:
        """The credential of a password already hashed by PBKDF2 with `salt` and `iterations`."""
        name = HASHES[mechanism]
        stored_key = hashlib.new(name, hmac.digest(salted, b"Client Key", name)).digest()
        return cls(salt, stored_key, hmac.digest(salted, b"Server Key", name), iterations)

    @classmethod
    def from_password(cls, mechanism: str, password: str, salt: bytes) -> ScramCredential:
        """The credential of a password. Takes some milliseconds."""
        salted = hashlib.pbkdf2_hmac(HASHES[mechanism], password.encode(), salt, MIN_ITERATIONS)
        return cls.from_salted_password(mechanism, salted, salt, MIN_ITERATIONS)

    @classmethod
    def invented(cls, mechanism: str, user: str, secret: bytes, iterations: int) -> ScramCredential:
        """A credential for a user that does not exist, derived from `secret`. It never changes, and no password matches
        it.
        """
        salt, key = (hmac.digest(secret, f"{kind} {user}".encode(), HASHES[mechanism]) for kind in ("salt", "key"))
        return cls(_salt_of(salt), key, key, iterations)

    @classmethod
    def from_text(cls, text: str) -> ScramCredential:
        """Raises ValueError."""
        parts = dict(part.split("=", 1) for part in text.split(","))
        try:
            keys = [base64.b64decode(parts[each], validate=True) for each in ("salt", "stored_key", "server_key")]
            return cls(keys[0], keys[1], keys[2], int(parts["iterations"]))
        except (KeyError, binascii.Error) as error:
            raise ValueError(f"not a SCRAM credential: {error}") from error


class Exchange(Protocol):
    """One authentication. `user` is None until it is complete.

    After that, `credential_expiry_ms` is the expiry of the client's credential, None if it does not expire. `has_token`
    says whether that credential is a delegation token.
    """

    user: str | None
    credential_expiry_ms: int | None
    has_token: bool

    async def respond(self, token: bytes) -> bytes:
        """The response to a client's token. Raises SaslAuthenticationError."""
        ...


class PlainExchange:
    """User and password in one token (Kafka class `PlainSaslServer`)."""

    def __init__(self, users: Mapping[str, str], comparison_key: bytes) -> None:
        """`comparison_key` is secret: passwords are compared by their keyed digests."""
        self._users = users
        self._key = comparison_key
        self.user: str | None = None
        self.credential_expiry_ms: int | None = None
        self.has_token = False

    async def respond(self, token: bytes) -> bytes:
        """See `Exchange`."""
        if self.user is not None:
            raise SaslAuthenticationError("Authentication failed: the exchange is complete")
        parts = token.split(b"\0")
        if len(parts) != 3:
            raise SaslAuthenticationError(f"Invalid SASL/PLAIN response: expected 3 tokens, got {len(parts)}")
        try:
            authzid, user, password = (part.decode() for part in parts)
        except UnicodeDecodeError as error:
            raise SaslAuthenticationError("Invalid SASL/PLAIN response: it is not UTF-8") from error
        if not user:
            raise SaslAuthenticationError("Authentication failed: username not specified")
        if not password:
            raise SaslAuthenticationError("Authentication failed: password not specified")
        known = self._users.get(user)
        # An unknown user takes the same time: an empty password is never valid.
        matches = hmac.compare_digest(self._digest(password), self._digest(known or ""))
        if known is None or not matches:
            raise SaslAuthenticationError("Authentication failed: Invalid username or password")
        if authzid and authzid != user:
            reason = "Authentication failed: Client requested an authorization id that is different from username"
            raise SaslAuthenticationError(reason)
        self.user = user
        return b""

    def _digest(self, password: str) -> bytes:
        return hmac.digest(self._key, password.encode(), "sha256")


class FindCredential(Protocol):
    """Looks up a user's credential."""

    async def __call__(self, user: str, mechanism: str, /) -> ScramCredential:
        """Returns an invented credential for an unknown user. Raises SaslAuthenticationError if the look-up fails."""
        ...


class TokenCredential(NamedTuple):
    """The parts of a delegation token that identify a client."""

    owner: str
    expiry_ms: int
    credential: ScramCredential


class FindToken(Protocol):
    """Looks up a delegation token."""

    async def __call__(self, token_id: str, mechanism: str, /) -> TokenCredential | None:
        """Returns None for an unknown token. Raises SaslAuthenticationError if the look-up fails."""
        ...


class ScramExchange:
    """Two tokens, neither of them with the password in it (Kafka class `ScramSaslServer`).

    Clients cannot find out whether a user exists: an unknown name gets an invented credential, and fails only at the
    end.

    With the extension `tokenauth=true`, the name is a delegation token's id, the password its HMAC, and the user its
    owner. Such ids cannot be guessed, so an unknown one fails at once.
    """

    def __init__(
        self,
        mechanism: str,
        find: FindCredential,
        find_token: FindToken,
        new_nonce: Callable[[], str],
    ) -> None:
        self._mechanism = mechanism
        self._hash = HASHES[mechanism]
        self._find = find
        self._find_token = find_token
        self._new_nonce = new_nonce
        self._wrong = (
            f"Authentication failed during authentication due to invalid credentials with SASL mechanism {mechanism}"
        )
        self._credential: ScramCredential
        self._asked = ""
        self._header = self._own_nonce = self._nonce = self._bare = self._challenge = ""
        self.user: str | None = None
        self.credential_expiry_ms: int | None = None
        self.has_token = False

    async def respond(self, token: bytes) -> bytes:
        """See `Exchange`."""
        if len(token) > MAX_SCRAM_BYTES:
            raise SaslAuthenticationError(self._wrong, f"a message has {len(token)} bytes")
        try:
            text = token.decode()
        except UnicodeDecodeError as error:
            raise SaslAuthenticationError(self._wrong) from error
        if not self._challenge:
            return (await self._first(text)).encode()
        if self.user is not None:
            raise SaslAuthenticationError(self._wrong)
        return self._final(text).encode()

    async def _first(self, text: str) -> str:
        found = _FIRST.fullmatch(text)
        if found is None:
            raise SaslAuthenticationError(self._wrong)
        self._asked = _plain_name(found["user"], self._wrong)
        if found["authzid"] and _plain_name(found["authzid"], self._wrong) != self._asked:
            reason = "Authentication failed: Client requested an authorization id that is different from username"
            raise SaslAuthenticationError(reason)
        self._header, self._bare = found["header"], found["bare"]
        if _has_token(found["extensions"]):
            token = await self._find_token(self._asked, self._mechanism)
            if token is None:
                raise SaslAuthenticationError(self._wrong)
            self._asked, self.credential_expiry_ms, self._credential = token
            self.has_token = True
        else:
            self._credential = await self._find(self._asked, self._mechanism)
        credential = self._credential
        self._own_nonce = found["nonce"]
        self._nonce = self._own_nonce + self._new_nonce()
        salt = base64.b64encode(credential.salt).decode()
        self._challenge = f"r={self._nonce},s={salt},i={credential.iterations}"
        return self._challenge

    def _final(self, text: str) -> str:
        found = _FINAL.fullmatch(text)
        if found is None:
            raise SaslAuthenticationError(self._wrong)
        # Java's client always sends "n,,", even with an authorization id.
        channels = [base64.b64encode(each.encode()).decode() for each in ("n,,", self._header)]
        # librdkafka before 2.6.1 repeats its own nonce before the combined one.
        nonces = (self._nonce, self._own_nonce + self._nonce)
        if found["channel"] not in channels or not any(hmac.compare_digest(found["nonce"], each) for each in nonces):
            raise SaslAuthenticationError(self._wrong)
        credential = self._credential
        message = f"{self._bare},{self._challenge},{found['unproved']}".encode()
        signature = hmac.digest(credential.stored_key, message, self._hash)
        try:
            proof = base64.b64decode(found["proof"], validate=True)
        except binascii.Error as error:
            raise SaslAuthenticationError(self._wrong) from error
        # Different base64 texts can decode to the same bytes; accept only the canonical one.
        if len(proof) != len(signature) or base64.b64encode(proof).decode() != found["proof"]:
            raise SaslAuthenticationError(self._wrong)
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
        stored_key = hashlib.new(self._hash, client_key).digest()
        if not hmac.compare_digest(stored_key, credential.stored_key):
            raise SaslAuthenticationError(self._wrong)
        self.user = self._asked
        return f"v={base64.b64encode(hmac.digest(credential.server_key, message, self._hash)).decode()}"


def _has_token(extensions: str) -> bool:
    """Whether the extensions in a first message, each after a comma, contain `tokenauth=true`."""
    values = dict(each.split("=", 1) for each in extensions.split(",")[1:])
    return values.get("tokenauth", "").lower() == "true"


def _salt_of(digest: bytes) -> bytes:
    """A salt that looks like those of Kafka's tools (`ScramFormatter.secureRandomBytes`): 130 bits in base 36."""
    number, letters = int.from_bytes(digest[:17], "big") >> 6, ""
    while number:
        number, digit = divmod(number, 36)
        letters = "0123456789abcdefghijklmnopqrstuvwxyz"[digit] + letters
    return letters.encode()


def _plain_name(written: str, wrong: str) -> str:
    """Decode a name as in RFC 5802: =2C is a comma, =3D an equals sign, and all other escapes are errors."""
    if re.search("=(?!2C|3D)", written):
        raise SaslAuthenticationError(wrong)
    return written.replace("=2C", ",").replace("=3D", "=")


MAX_ITERATIONS: Final = 100_000
"""A server must not be able to keep a client hashing for long; Kafka's brokers use at most 16,384."""
_PADDED: Final = r"[A-Za-z0-9+/]+={0,2}"
_CHALLENGE: Final = re.compile(rf"r=(?P<nonce>[!-+\--~]+),s=(?P<salt>{_PADDED}),i=(?P<iterations>[0-9]{{1,9}})(?:,.*)?")
_HEADER: Final = "n,,"

ClientExchange = Generator[bytes, bytes, None]
"""Yields the client's tokens and is sent the server's; ends after the last one."""


class ServerError(Exception):
    """The server cannot prove that it has the credential, or its message is malformed."""


def exchange(login: Login, nonce: str) -> ClientExchange:
    """The client's tokens for `login`; `nonce` must be unique. Run it off the event loop, since SCRAM's hashing takes
    long.

    Raises ServerError.
    """
    if login.mechanism == "PLAIN":
        return _plain(login)
    return _scram(login, nonce)


def _plain(login: Login) -> ClientExchange:
    yield f"\0{login.username}\0{login.password}".encode()


def _scram(login: Login, own_nonce: str) -> ClientExchange:
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
