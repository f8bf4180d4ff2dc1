"""DIGEST-MD5 without a server."""

from __future__ import annotations

import pytest

from security.jaas import DigestLogin
from zookeeper.digest_md5 import ChallengeError, DigestAuthenticationError, DigestMd5Client, DigestMd5Server


def test_the_example_of_rfc_2831() -> None:
    client = DigestMd5Client(DigestLogin("chris", "secret"), lambda: "OA6MHXh6VqTrRk", "imap/elwood.innosoft.com")
    challenge = b'realm="elwood.innosoft.com",nonce="OA6MG9tEQGm2hh",qop="auth",algorithm=md5-sess,charset=utf-8'
    assert not client.is_proven_by(b"")
    response = client.answer(challenge).split(b",")
    assert b"response=d388dad90d4bbd760a152321f2143af7" in response
    assert b'cnonce="OA6MHXh6VqTrRk"' in response
    assert client.is_proven_by(b"rspauth=ea40f60335c427b5527b84dbabcdfffd")
    assert not client.is_proven_by(b"rspauth=ea40f60335c427b5527b84dbabcdfffe")


@pytest.mark.parametrize(
    "challenge",
    [
        b"",
        b"garbage\xff",
        b'realm="r",algorithm=md5-sess',
        b'realm="r",nonce="n",algorithm=md5',
        b'realm="r",nonce="n",algorithm=md5-sess,qop="auth-conf"',
    ],
)
def test_another_challenge(challenge: bytes) -> None:
    with pytest.raises(ChallengeError):
        DigestMd5Client(DigestLogin("a", "b"), lambda: "c").answer(challenge)


def test_both_sides() -> None:
    server = DigestMd5Server({"änne": "ge:heim"}, lambda: "s")
    client = DigestMd5Client(DigestLogin("änne", "ge:heim"), lambda: "c")
    assert client.is_proven_by(server.evaluate(client.answer(server.evaluate(b""))))
    assert server.username == "änne"


@pytest.mark.parametrize(
    ("login", "change", "message"),
    [
        (("alice", "wrong"), (b"", b""), "no user alice with this password"),
        (("bob", ""), (b"", b""), "no user bob with this password"),
        (("alice", "x"), (b'nonce="s"', b'nonce="t"'), "to another challenge"),
        (("alice", "x"), (b"nc=00000001", b"nc=00000002"), "to another challenge"),
        (("alice", "x"), (b"qop=auth", b"qop=auth-int"), "to another challenge"),
        (("alice", "x"), (b"realm=", b"r="), "does not answer the challenge"),
        (("alice", "x"), (b"alice", b"\xff"), "does not answer the challenge"),
    ],
)
def test_clients_that_are_refused(login: tuple[str, str], change: tuple[bytes, bytes], message: str) -> None:
    server = DigestMd5Server({"alice": "x"}, lambda: "s")
    answer = DigestMd5Client(DigestLogin(*login), lambda: "c").answer(server.evaluate(b""))
    with pytest.raises(DigestAuthenticationError, match=message):
        server.evaluate(answer.replace(*change) if change[0] else answer)
    assert server.username is None
