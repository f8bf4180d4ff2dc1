"""Delegation tokens as Kafka stores them in ZooKeeper, and the operations on them."""

from __future__ import annotations

import base64

import pytest

from cluster.security.delegation_token import (
    PERSISTENT_PATHS,
    DelegationToken,
    is_token_id,
    new_token,
    token_hmac,
    token_path,
)
from cluster.security.principal import Principal
from cluster.znodes import ZnodeFormatError
from protocol.errors import ApiError, ErrorCode

ALICE, BOB, CAROL = (Principal("User", name) for name in ("alice", "CN=é, O=b", "carol"))
TOKEN = DelegationToken("3wQm5mX_QJ-xCrNTqLsZ0A", ALICE, BOB, (CAROL, BOB), 1000, 9000, 3000)
PAYLOAD = (
    b'{"issueTimestamp":1000,"renewers":["User%3Acarol","User%3ACN%3D%C3%A9%2C%20O%3Db"],'
    b'"tokenRequester":"User%3ACN%3D%C3%A9%2C%20O%3Db","tokenId":"3wQm5mX_QJ-xCrNTqLsZ0A","owner":"User%3Aalice",'
    b'"expiryTimestamp":3000,"maxTimestamp":9000,"version":3}'
)


def test_payload() -> None:
    assert TOKEN.encode() == PAYLOAD
    assert DelegationToken.decode(TOKEN.token_id, PAYLOAD) == TOKEN
    assert token_path("a") == "/delegation_token/tokens/a"
    assert PERSISTENT_PATHS == ("/delegation_token", "/delegation_token/tokens", "/delegation_token/token_changes")


def test_older_payloads_have_no_requester() -> None:
    for version in (b"1", b"2"):
        older = PAYLOAD.replace(b'"version":3', b'"version":' + version).replace(b"tokenRequester", b"whatever")
        assert DelegationToken.decode(TOKEN.token_id, older) == TOKEN.replace(requester=ALICE)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"nonsense",
        b"[]",
        b"{}",
        PAYLOAD.replace(b'"version":3', b'"version":4'),
        PAYLOAD.replace(b'"version":3', b'"version":0'),
        PAYLOAD.replace(b"User%3Aalice", b"alice"),
        PAYLOAD.replace(b'"User%3Aalice"', b"7"),
        PAYLOAD.replace(b"9000", b'"soon"'),
        PAYLOAD.replace(b"9000", b"1e999"),
        PAYLOAD.replace(b"9000", b"Infinity"),
        PAYLOAD.replace(b"expiryTimestamp", b"expiry"),
    ],
)
def test_payloads_that_are_not_understood(data: bytes) -> None:
    with pytest.raises(ZnodeFormatError, match="/delegation_token/tokens/3wQm5mX_QJ-xCrNTqLsZ0A cannot be understood"):
        DelegationToken.decode(TOKEN.token_id, data)


def test_the_hmac() -> None:
    # echo -n id | openssl dgst -sha512 -hmac secret -binary | base64
    expected = "Kqsj84D2HvmnERp8qX9vArB3GxbAuhDMEIr1tUmF+G2LDc2MvQOsR0wzsnmFNi7dP/oFGK58nkU+HO7dU1F2tQ=="
    assert base64.b64encode(token_hmac("secret", "id")).decode() == expected
    assert token_hmac("sécret", "id") != token_hmac("secret", "id")


def test_ids() -> None:
    assert is_token_id(TOKEN.token_id)
    for text in ("", "..", ".", "a/b", "a\n", "é", "a b", "a" * 65):
        assert not is_token_id(text)


def test_a_new_token_lives_until_its_first_end() -> None:
    token = new_token("id", ALICE, BOB, (CAROL,), 1000, lifetime_ms=500, first_period_ms=300)
    assert (token.issue_ms, token.expiry_ms, token.max_ms) == (1000, 1300, 1500)
    assert new_token("id", ALICE, BOB, (), 1000, lifetime_ms=100, first_period_ms=300).expiry_ms == 1100
    endless = new_token("id", ALICE, BOB, (), 1000, lifetime_ms=2**63 - 1, first_period_ms=2**63 - 1)
    assert (endless.max_ms, endless.expiry_ms) == (2**63 - 1, 2**63 - 1)


def test_who_may_do_what() -> None:
    token = TOKEN.replace(renewers=(CAROL,))
    assert all(map(token.is_known_to, (ALICE, BOB, CAROL)))
    assert not token.is_known_to(Principal("Group", "alice"))
    for each in (ALICE, CAROL):
        token.check_renewer(each)
    for each in (BOB, Principal("Group", "alice")):
        with pytest.raises(ApiError) as caught:
            token.check_renewer(each)
        assert caught.value.error_code is ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH


def test_ends() -> None:
    assert TOKEN.ending(2000, 500).expiry_ms == 2500
    assert TOKEN.ending(2000, 2**63 - 1).expiry_ms == TOKEN.max_ms
    assert TOKEN.ending(3000, 0).expiry_ms == 3000
    assert not TOKEN.has_expired(3000)
    for late in (TOKEN, TOKEN.replace(max_ms=3000, expiry_ms=4000)):
        assert late.has_expired(3001)
        with pytest.raises(ApiError) as caught:
            late.ending(3001, 500)
        assert caught.value.error_code is ErrorCode.DELEGATION_TOKEN_EXPIRED
