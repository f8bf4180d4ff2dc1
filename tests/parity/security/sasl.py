"""SaslHandshake and SaslAuthenticate, in order and out of it, with valid, invalid and nonsense tokens."""

from __future__ import annotations

import base64
import re

from protocol.messages.api_versions import ApiVersionsRequest
from protocol.messages.metadata import MetadataRequest
from protocol.messages.security import SaslAuthenticateRequest, SaslHandshakeRequest
from security.sasl_config import Login
from tests.kit.wire_client import ConnectionClosed, WireClient
from tests.parity.security.subject import SaslSubject, sasl_scenario

ALICE = Login("PLAIN", "alice", "alice's")
BOB = Login("PLAIN", "bob", "bob's")
GOOD = b"\0alice\0alice's"
MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")
METADATA = MetadataRequest(topics=[], allow_auto_topic_creation=False)
VERSIONS = ApiVersionsRequest(client_software_name="parity", client_software_version="1")


@sasl_scenario
def every_version(b: SaslSubject) -> None:
    for version in range(3):
        with b.client() as client:
            b.shake(client, "PLAIN")
            b.token(client, GOOD, version)
            b.serves(client)


@sasl_scenario
def mechanisms_that_are_not_there(b: SaslSubject) -> None:
    for mechanism in ("GSSAPI", "plain", "", "OAUTHBEARER", "PLAIN "):
        for version in (0, 1):
            with b.client() as client:
                b.shake(client, mechanism, version)
                b.ends(client)


@sasl_scenario
def versions_asked_before(b: SaslSubject) -> None:
    with b.client() as client:
        b.note("ApiVersions", client.ask(VERSIONS, 3).error_code)
        b.shake(client, "PLAIN")
        b.token(client, GOOD)
        b.serves(client)


@sasl_scenario
def versions_asked_twice(b: SaslSubject) -> None:
    with b.client() as client:
        client.send(VERSIONS, 3)
        client.receive_frame()
        client.send(VERSIONS, 3)
        b.ends(client)


@sasl_scenario
def bad_versions_requests(b: SaslSubject) -> None:
    with b.client() as client:
        bad = ApiVersionsRequest(client_software_name="a b", client_software_version="!")
        b.note("ApiVersions", client.ask(bad, 3).error_code)
        b.ends(client)


@sasl_scenario
def out_of_order(b: SaslSubject) -> None:
    with b.client() as client:
        b.token(client, GOOD)
    with b.client() as client:
        b.ask(METADATA, 9, client)
    with b.client() as client:
        b.shake(client, "PLAIN")
        b.shake(client, "PLAIN")
    with b.client() as client:
        b.shake(client, "PLAIN")
        b.ask(VERSIONS, 3, client)
    with b.client() as client:
        b.shake(client, "PLAIN")
        b.ask(METADATA, 9, client)


@sasl_scenario
def versions_that_are_not_there(b: SaslSubject) -> None:
    for api_key, version in ((17, 2), (36, 3), (36, -1), (17, -1)):
        with b.client() as client:
            if api_key == 36:
                b.shake(client, "PLAIN")
            client.send_body(api_key, version, b"\0\5PLAIN", 1)
            b.ends(client)


@sasl_scenario
def frames(b: SaslSubject) -> None:
    for frame in (b"", b"\0", b"\0\x11\0\1\0\0\0\1\xff\xff\0\5PLA"):
        with b.client() as client:
            client.send_frame(frame)
            b.ends(client)
    with b.client() as client:
        client.send_bytes(b"\0\x08\0\1")  # announces 524,289 bytes
        b.ends(client)


@sasl_scenario
def tokens_without_headers(b: SaslSubject) -> None:
    for token in (GOOD, b"\0alice\0wrong", b""):
        with b.client() as client:
            b.shake(client, "PLAIN", 0)
            client.send_frame(token)
            try:
                b.note("answer", client.receive_frame())
                b.serves(client)
            except ConnectionClosed:
                b.note("answer", "<connection closed>")


@sasl_scenario
def plain_tokens(b: SaslSubject) -> None:
    for token in (
        b"",
        b"alice",
        b"\0alice",
        b"\0alice\0alice's\0more",
        b"\0\0alice's",
        b"\0alice\0",
        b"\0\0",
        b"alice\0alice\0alice's",
        b"bob\0alice\0alice's",
        b"\0bob\0alice's",
        b"\0nobody\0alice's",
        b"nobody\0nobody\0alice's",
        b"\0ALICE\0alice's",
        b"\0alice \0alice's",
        "\0\u00e4 =,\0\u20ac".encode(),
    ):
        with b.client() as client:
            b.shake(client, "PLAIN")
            b.token(client, token)
            b.serves(client)


@sasl_scenario
def in_plain_text(b: SaslSubject) -> None:
    for version in (0, 1):
        b.ask(SaslHandshakeRequest(mechanism="PLAIN"), version)
    for version in range(3):
        b.ask(SaslAuthenticateRequest(auth_bytes=GOOD), version)


@sasl_scenario
def tokens_after_all(b: SaslSubject) -> None:
    with b.client() as client:
        b.log_in(client, ALICE)
        for version in range(3):
            b.token(client, GOOD, version)
        b.serves(client)


@sasl_scenario
def again(b: SaslSubject) -> None:
    for short in (False, True):
        for other in (ALICE, BOB, Login("SCRAM-SHA-256", "alice", "alice's")):
            with b.client(short=short) as client:
                b.log_in(client, ALICE)
                b.log_in(client, other)
                b.serves(client)


@sasl_scenario
def again_at_once(b: SaslSubject) -> None:
    with b.client(short=True) as client:
        for _ in range(2):
            b.log_in(client, ALICE)
        b.shake(client, "PLAIN")
        b.serves(client)


@sasl_scenario
def scram(b: SaslSubject) -> None:
    for mechanism in MECHANISMS:
        for user, password in (("alice", "alice's"), ("alice", "wrong"), ("a =,", "\u20ac")):
            with b.client() as client:
                b.log_in(client, Login(mechanism, user, password))
                b.serves(client)


@sasl_scenario
def scram_of_a_name_beyond_ascii(b: SaslSubject) -> None:
    with b.client() as client:
        b.log_in(client, Login(MECHANISMS[0], "\u00e4", "\u20ac"))


@sasl_scenario
def scram_of_nobody(b: SaslSubject) -> None:
    with b.client() as client:
        b.log_in(client, Login(MECHANISMS[0], "nobody", "x"))


def first(b: SaslSubject, client: WireClient, message: bytes) -> str:
    """Send SCRAM's first message; returns the challenge. The transcript omits its random parts."""
    client.ask(SaslHandshakeRequest(mechanism=MECHANISMS[0]), 1)
    answer = client.ask(SaslAuthenticateRequest(auth_bytes=message), 2)
    challenge = bytes(answer.auth_bytes).decode()
    shown = re.sub(r"r=(cccc)?[^,]*,s=[^,]*", r"r=\1...,s=...", challenge)
    b.note("SaslAuthenticate", (answer.error_code, answer.error_message, shown))
    return challenge


@sasl_scenario
def scram_first_messages(b: SaslSubject) -> None:
    for message in (
        b"",
        b"nonsense",
        b"n,,n=alice",
        b"n,,r=cccc,n=alice",
        b"n,,n=alice,r=cccc",
        b"y,,n=alice,r=cccc",
        b"p=tls-unique,,n=alice,r=cccc",
        b"n,a=alice,n=alice,r=cccc",
        b"n,a=bob,n=alice,r=cccc",
        b"n,a=,n=alice,r=cccc",
        b"n,,n=,r=cccc",
        b"n,,n=alice,r=",
        b"n,,n=al=ice,r=cccc",
        b"n,,n=al=2cice,r=cccc",
        b"n,,m=x,n=alice,r=cccc",
        b"n,,n=alice,r=cccc,x=y",
        b"n,,n=alice,r=cccc,tokenauth=true",
        b"n,,n=alice,r=cccc,tokenauth=false",
        b"n,,n=alice,r=cc cc",
        b"n,,n=ali\0ce,r=cccc",
    ):
        with b.client() as client:
            first(b, client, message)


@sasl_scenario
def scram_final_messages(b: SaslSubject) -> None:
    proof = base64.b64encode(bytes(32)).decode()
    for template in (
        "",
        "nonsense",
        "c=biws,r=NONCE",
        f"c=biws,r=NONCE,p={proof}",
        "c=biws,r=NONCE,p=",
        "c=biws,r=NONCE,p=AAAA",
        "c=biws,r=NONCE,p=*",
        f"c=biws,r=NONCEx,p={proof}",
        f"c=biws,r=cccc,p={proof}",
        f"c=eSws,r=NONCE,p={proof}",
        f"r=NONCE,c=biws,p={proof}",
        f"c=biws,r=NONCE,x=y,p={proof}",
    ):
        with b.client() as client:
            challenge = first(b, client, b"n,,n=alice,r=cccc")
            nonce = challenge.partition(",")[0].removeprefix("r=")
            b.token(client, template.replace("NONCE", nonce).encode())
            b.ends(client)
