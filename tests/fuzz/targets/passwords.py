"""PLAIN and SCRAM: tokens of clients to the broker, and of servers to the broker's own client.

The valid tokens are computed here, by code independent of the broker's.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import random
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from security.sasl_config import Login
from security.sasl_exchange import (
    MAX_ITERATIONS,
    PlainExchange,
    SaslAuthenticationError,
    ScramCredential,
    ScramExchange,
    ServerError,
    TokenCredential,
    exchange,
)
from tests.fuzz.mutation import mutated, put_together
from tests.fuzz.runner import Target, Trial

USERS = {"alice": "secret", "b,=c": "pencil", "Zoë": "pässwörd"}
TOKEN_ID, TOKEN_HMAC, TOKEN_OWNER = "token-id", "hmac", "dora"
HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
SALT = b"fuzzing's salt"
LEAST_ITERATIONS = 4096
SERVER_NONCE = "5erver-n0nce"
PIECES = (
    *(
        "n,",
        "y,",
        "p=x,",
        "n,,",
        "n,a=alice,",
        "n=alice",
        "n=b=2C=3Dc",
        "n=nobody",
        ",",
        "=",
        "=2C",
        "m=ext,",
        ",r=abc",
    ),
    *(
        "r=",
        "c=biws",
        "p=AAAA",
        "tokenauth=true",
        ",tokenauth=TRUE",
        ",x=y",
        "alice",
        "token-id",
        "\0",
        "é",
        "v=",
        "i=1",
    ),
)


def result_of(coroutine: Coroutine[Any, Any, bytes]) -> bytes:
    """The result of a coroutine that never waits."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    raise AssertionError("it waits")


# -- PLAIN -------------------------------------------------------------------------------------------------------------

RIGHT_PLAIN = {
    f"{authzid}\0{user}\0{password}".encode(): user for user, password in USERS.items() for authzid in ("", user)
}
"""Every accepted token, with its user."""
_PLAIN = [*RIGHT_PLAIN, b"\0nobody\0secret", b"alice\0b,=c\0pencil", b"\0alice\0pencil", b"\0alice\0", b"\0\0secret"]


class Plain:
    """One token."""

    def make(self, draw: random.Random) -> bytes:
        token = draw.choice(_PLAIN)
        kind = draw.random()
        if kind < 0.1:
            return token
        return mutated(token, draw) if kind < 0.8 else put_together(PIECES, draw).encode()

    def check(self, case: bytes) -> bool:
        server = PlainExchange(USERS, b"key")
        try:
            answer = result_of(server.respond(case))
        except SaslAuthenticationError:
            assert server.user is None
            assert case not in RIGHT_PLAIN
            return False
        assert (answer, server.user) == (b"", RIGHT_PLAIN[case])
        return True


# -- SCRAM, clients' tokens --------------------------------------------------------------------------------------------


def _salted(mechanism: str, password: str) -> bytes:
    return hashlib.pbkdf2_hmac(HASHES[mechanism], password.encode(), SALT, LEAST_ITERATIONS)


SALTED = {
    (mechanism, name): _salted(mechanism, password)
    for mechanism in HASHES
    for name, password in {**USERS, TOKEN_ID: TOKEN_HMAC}.items()
}
_CREDENTIALS = {
    key: ScramCredential.from_salted_password(key[0], salted, SALT, LEAST_ITERATIONS) for key, salted in SALTED.items()
}


async def _find(user: str, mechanism: str) -> ScramCredential:
    known = _CREDENTIALS.get((mechanism, user)) if user in USERS else None
    return known or ScramCredential.invented(mechanism, user, b"key", LEAST_ITERATIONS)


async def _find_token(token_id: str, mechanism: str) -> TokenCredential | None:
    return TokenCredential(TOKEN_OWNER, 77, _CREDENTIALS[mechanism, TOKEN_ID]) if token_id == TOKEN_ID else None


def proof(mechanism: str, salted: bytes, message: bytes) -> bytes:
    """A client's proof, as in RFC 5802."""
    name = HASHES[mechanism]
    client_key = hmac.digest(salted, b"Client Key", name)
    signature = hmac.digest(hashlib.new(name, client_key).digest(), message, name)
    return base64.b64encode(bytes(a ^ b for a, b in zip(client_key, signature, strict=True)))


class ScramCase(NamedTuple):
    """A first token, and the rule for making the last one from the challenge. `twist`, if not 0, changes the last
    token.
    """

    mechanism: str
    first: bytes
    knows: str
    """The user whose password is used."""
    channel: bytes
    nonce: str
    """`{}` stands for the challenge's nonce, `<>` for the client's."""
    extension: bytes
    twist: int
    is_right: bool
    """Whether it must be accepted."""


class Scram:
    """Both tokens of a client."""

    def make(self, draw: random.Random) -> ScramCase:
        mechanism = draw.choice(list(HASHES))
        name = draw.choice([*USERS, TOKEN_ID])
        written = name.replace("=", "=3D").replace(",", "=2C")
        header = draw.choice(["n,,", "n,,", f"n,a={written},"]) if name != TOKEN_ID else "n,,"
        extensions = draw.choice(["", ",x=y"]) + (",tokenauth=true" if name == TOKEN_ID else "")
        first = f"{header}n={written},r={draw.randrange(10**9)}{extensions}".encode()
        channel = base64.b64encode(header.encode())
        right = ScramCase(mechanism, first, name, channel, "{}", draw.choice([b"", b",x=y"]), 0, True)
        match draw.randrange(12):
            case 0:
                return right
            case 1:
                # Like librdkafka before 2.6.1.
                return right._replace(nonce="<>{}")
            case 2:
                changed = put_together(PIECES, draw).encode()
                return right._replace(first=changed, is_right=False)
            case 3 | 4 | 5:
                return right._replace(first=mutated(first, draw), is_right=False)
            case 6:
                return right._replace(
                    knows=draw.choice([each for each in (*USERS, TOKEN_ID) if each != name]), is_right=False
                )
            case 7:
                nonce = draw.choice(["", "{}x", "x{}", "<>", "<><>{}", "<>x{}", SERVER_NONCE, "<>" + SERVER_NONCE[:-1]])
                return right._replace(nonce=nonce, is_right=False)
            case 8:
                other = draw.choice([b"", b"eSws", b"cD10bHMtdW5pcXVlLCw=", b"biw=", b"biwsAA=="])
                return right._replace(channel=other, is_right=False)
            case _:
                return right._replace(twist=draw.randrange(1, 2**32), is_right=False)

    def check(self, case: ScramCase) -> bool:
        server = ScramExchange(case.mechanism, _find, _find_token, lambda: SERVER_NONCE)
        try:
            challenge = result_of(server.respond(case.first))
        except SaslAuthenticationError:
            assert not case.is_right
            assert server.user is None
            return False
        assert server.user is None
        header_a, header_b, bare = case.first.split(b",", 2)
        nonce = challenge.partition(b",s=")[0].removeprefix(b"r=")
        assert nonce.endswith(SERVER_NONCE.encode())
        own = nonce.removesuffix(SERVER_NONCE.encode())
        assert own in bare
        said = case.nonce.encode().replace(b"{}", nonce).replace(b"<>", own)
        unproved = b"c=" + case.channel + b",r=" + said + case.extension
        message = bare + b"," + challenge + b"," + unproved
        last = unproved + b",p=" + proof(case.mechanism, SALTED[case.mechanism, case.knows], message)
        if case.twist:
            last = mutated(last, random.Random(case.twist))
        try:
            answer = result_of(server.respond(last))
        except SaslAuthenticationError:
            assert not case.is_right
            assert server.user is None
            return False
        self._check_accepted(case, server, bare, challenge, last, header_a + b"," + header_b + b",")
        assert answer == b"v=" + self._signature(case, message)
        try:
            result_of(server.respond(last))
        except SaslAuthenticationError:
            return True
        raise AssertionError("an exchange goes on after its end")

    def _check_accepted(
        self, case: ScramCase, server: ScramExchange, bare: bytes, challenge: bytes, last: bytes, header: bytes
    ) -> None:
        """The last token must prove the user's password."""
        name = next(part for part in bare.split(b",") if part.startswith(b"n="))[2:].decode()
        name = name.replace("=2C", ",").replace("=3D", "=")
        extensions = dict(part.split(b"=", 1) for part in bare.split(b",")[2:] if b"=" in part)
        has_token = extensions.get(b"tokenauth", b"").lower() == b"true"
        assert (name == TOKEN_ID) is has_token
        assert server.user == (TOKEN_OWNER if has_token else name)
        assert server.credential_expiry_ms == (77 if has_token else None)
        assert header in (b"n,,", b"n,a=" + name.replace("=", "=3D").replace(",", "=2C").encode() + b",")
        unproved, _, shown = last.rpartition(b",p=")
        channel, own_nonce, *_ = unproved.split(b",")
        assert channel.removeprefix(b"c=") in (b"biws", base64.b64encode(header))
        nonce = challenge.partition(b",s=")[0].removeprefix(b"r=")
        assert own_nonce in (b"r=" + nonce, b"r=" + nonce.removesuffix(SERVER_NONCE.encode()) + nonce)
        right = proof(case.mechanism, SALTED[case.mechanism, name], bare + b"," + challenge + b"," + unproved)
        assert shown == right

    @staticmethod
    def _signature(case: ScramCase, message: bytes) -> bytes:
        name = HASHES[case.mechanism]
        key = hmac.digest(SALTED[case.mechanism, case.knows], b"Server Key", name)
        return base64.b64encode(hmac.digest(key, message, name))


# -- SCRAM, servers' tokens --------------------------------------------------------------------------------------------


class Challenge(NamedTuple):
    """A server's tokens for a client whose nonce is `nonce`. `twist`, if not 0, changes the last one."""

    first: bytes
    knows: str
    twist: int
    is_right: bool


class ScramServers:
    """Both tokens of a server to the broker's own client, which computes hashes for each of them."""

    _right = f"r=nonce{SERVER_NONCE},s={base64.b64encode(SALT).decode()},i={LEAST_ITERATIONS}"

    def make(self, draw: random.Random) -> Challenge:
        right = Challenge(self._right.encode(), "alice", 0, True)
        match draw.randrange(8):
            case 0:
                return right
            case 1:
                return right._replace(knows="Zoë", is_right=False)
            case 2 | 3:
                return right._replace(twist=draw.randrange(1, 2**32), is_right=False)
            case 4:
                few = draw.choice(["0", "1", "4095", "-1", "100001", "999999999", "9999999999", "", "٤٠٩٦"])
                changed = self._right.replace("4096", few).encode()
                return right._replace(first=changed, is_right=False)
            case _:
                return right._replace(first=mutated(right.first, draw), is_right=False)

    def check(self, case: Challenge) -> bool:
        tokens = exchange(Login("SCRAM-SHA-256", "alice", "secret"), "nonce")
        bare = next(tokens).removeprefix(b"n,,")
        try:
            last = tokens.send(case.first)
        except ServerError:
            assert not case.is_right
            return False
        nonce, salt, iterations = (part[2:] for part in case.first.split(b",")[:3])
        assert nonce.startswith(b"nonce")
        assert len(nonce) > 5
        assert LEAST_ITERATIONS <= int(iterations) <= MAX_ITERATIONS
        unproved, _, shown = last.rpartition(b",p=")
        assert unproved == b"c=biws,r=" + nonce
        message = bare + b"," + case.first + b"," + unproved
        salted = hashlib.pbkdf2_hmac("sha256", USERS[case.knows].encode(), base64.b64decode(salt), int(iterations))
        if case.knows == "alice":
            assert shown == proof("SCRAM-SHA-256", salted, message)
        key = hmac.digest(salted, b"Server Key", "sha256")
        right = b"v=" + base64.b64encode(hmac.digest(key, message, "sha256"))
        sent = mutated(right, random.Random(case.twist)) if case.twist else right
        try:
            tokens.send(sent)
        except StopIteration:
            assert case.knows == "alice"
            # Base64 text with the same bytes is the same signature; extensions may follow.
            assert base64.b64decode(sent[2:].partition(b",")[0]) == base64.b64decode(right[2:])
            return True
        except ServerError:
            assert not case.is_right
            return False
        raise AssertionError("the client goes on after the server's last token")


@contextmanager
def plain() -> Iterator[Trial]:
    """See `Plain`."""
    yield Plain()


@contextmanager
def scram() -> Iterator[Trial]:
    """See `Scram`."""
    yield Scram()


@contextmanager
def scram_servers() -> Iterator[Trial]:
    """See `ScramServers`."""
    yield ScramServers()


TARGETS = (Target("plain", 150, plain), Target("scram", 80, scram), Target("scram-servers", 0.3, scram_servers))
