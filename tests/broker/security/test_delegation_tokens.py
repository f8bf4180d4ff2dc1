"""Delegation tokens of one broker: created, used, renewed, expired and described."""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import Mapping
from typing import Any

import pytest

from broker.handlers.security.delegation_tokens import DelegationTokenHandlers
from broker.network.registry import RequestContext
from broker.security.access import OPEN
from cluster.security.principal import ANONYMOUS, Principal
from protocol.acl_types import AclOperation, ResourceType
from protocol.errors import ErrorCode
from protocol.messages.configs import DescribeConfigsRequest
from protocol.messages.delegation_tokens import (
    CreateDelegationTokenRequest,
    DescribeDelegationTokenRequest,
    ExpireDelegationTokenRequest,
    RenewDelegationTokenRequest,
)
from protocol.messages.metadata import MetadataRequest
from protocol.messages.security import CreateAclsRequest, SaslAuthenticateRequest, SaslHandshakeRequest
from protocol.wire.schema import Request
from security.authorization import ACL_AUTHORIZER
from security.sasl_config import Login
from security.sasl_exchange import exchange
from tests.broker.security.secured import acl
from tests.kit.environment import ManualClock
from tests.kit.in_process import InProcessBroker, Scenario, Wire
from tests.kit.in_process import play as play_scenarios

Renewer = CreateDelegationTokenRequest.CreatableRenewers
Owner = DescribeDelegationTokenRequest.DescribeDelegationTokenOwner

USERS = ("admin", "alice", "bob", "carol")
"""The users; each name is also the password."""
MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule required username=admin password=admin " + " ".join(
    f"user_{user}={user}" for user in USERS
)
SECURITY = {
    "listeners": "SASL://127.0.0.1:9092",
    "listener.security.protocol.map": "SASL:SASL_PLAINTEXT",
    "inter.broker.listener.name": "SASL",
    "sasl.mechanism.inter.broker.protocol": "PLAIN",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
    "listener.name.sasl.plain.sasl.jaas.config": f"{MODULE};",
    "connection.failed.authentication.delay.ms": "0",
}
SECRET_KEY = {"delegation.token.secret.key": "the brokers' secret"}
TOKENS = {**SECRET_KEY, "delegation.token.max.lifetime.ms": "100000"}
ACLS = {"authorizer.class.name": ACL_AUTHORIZER, "super.users": "User:admin"}


def play(*scenarios: Scenario, settings: Mapping[str, str] = TOKENS) -> None:
    """Like `tests.kit.in_process.play`, with SASL."""
    play_scenarios(*scenarios, **SECURITY, **settings)


async def by_password(broker: InProcessBroker, user: str) -> Wire:
    """A connection authenticated by password."""
    wire = broker.connect()
    await wire.ask(SaslHandshakeRequest(mechanism="PLAIN"), 1)
    answer: Any = await wire.ask(SaslAuthenticateRequest(auth_bytes=f"\0{user}\0{user}".encode()), 2)
    assert answer.error_code == ErrorCode.NONE
    return wire


async def by_token(broker: InProcessBroker, token_id: str, hmac: bytes, mechanism: str = "SCRAM-SHA-512") -> Any:
    """A connection authenticated by token, and the last answer of its authentication."""
    wire = broker.connect()
    await wire.ask(SaslHandshakeRequest(mechanism=mechanism), 1)
    tokens = exchange(Login(mechanism, token_id, base64.b64encode(hmac).decode(), has_token=True), "nonce")
    answer: Any = await wire.ask(SaslAuthenticateRequest(auth_bytes=next(tokens)), 2)
    if answer.error_code == ErrorCode.NONE:
        answer = await wire.ask(SaslAuthenticateRequest(auth_bytes=tokens.send(bytes(answer.auth_bytes))), 2)
    return wire, answer


def creation(*renewers: str, owner: str = "", lifetime_ms: int = -1) -> CreateDelegationTokenRequest:
    return CreateDelegationTokenRequest(
        owner_principal_type="User" if owner else "",
        owner_principal_name=owner,
        renewers=[Renewer(principal_type="User", principal_name=each) for each in renewers],
        max_lifetime_ms=lifetime_ms,
    )


def renewal(hmac: bytes, period_ms: int = -1) -> RenewDelegationTokenRequest:
    return RenewDelegationTokenRequest(hmac=hmac, renew_period_ms=period_ms)


def expiry(hmac: bytes, period_ms: int = -1) -> ExpireDelegationTokenRequest:
    return ExpireDelegationTokenRequest(hmac=hmac, expiry_time_period_ms=period_ms)


async def owners_seen(wire: Wire, *owners: str) -> Mapping[str, str]:
    """Owners by the ids of the tokens in a description, of all owners by default."""
    asked = [Owner(principal_type="User", principal_name=each) for each in owners] or None
    answer: Any = await wire.ask(DescribeDelegationTokenRequest(owners=asked), 3)
    assert answer.error_code == ErrorCode.NONE
    return {each.token_id: each.principal_name for each in answer.tokens}


async def code_of(wire: Wire, request: Request) -> ErrorCode:
    answer: Any = await wire.ask(request, request.max_version)
    return ErrorCode.of(answer.error_code)


def test_a_token_lets_its_owner_in() -> None:
    async def scenario(broker: InProcessBroker, _: Wire) -> None:
        alice = await by_password(broker, "alice")
        made: Any = await alice.ask(creation("bob"), 3)
        now_ms = broker.clock.now_ms()
        assert (made.error_code, made.principal_type, made.principal_name) == (ErrorCode.NONE, "User", "alice")
        assert (made.token_requester_principal_type, made.token_requester_principal_name) == ("User", "alice")
        assert (made.issue_timestamp_ms, made.max_timestamp_ms) == (now_ms, now_ms + 100_000)
        assert made.expiry_timestamp_ms == made.max_timestamp_ms, "the usual life, a day, is longer than the longest"
        assert (len(made.token_id), len(made.hmac)) == (22, 64)
        for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
            wire, answer = await by_token(broker, made.token_id, made.hmac, mechanism)
            assert (answer.error_code, answer.session_lifetime_ms) == (ErrorCode.NONE, 100_000)
            assert str(wire.connection.principal) == "User:alice"
            await wire.ask(MetadataRequest(topics=[]), 9)
        for token_id, hmac in ((made.token_id, made.hmac[::-1]), (made.token_id + "x", made.hmac), ("../x", made.hmac)):
            _, answer = await by_token(broker, token_id, hmac)
            assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED

    play(scenario)


def test_a_token_outlives_the_broker_and_its_connections_do_not_outlive_it() -> None:
    made: list[Any] = []

    async def make(broker: InProcessBroker, _: Wire) -> None:
        made.append(await (await by_password(broker, "alice")).ask(creation("bob"), 3))

    async def use(broker: InProcessBroker, _: Wire) -> None:
        token = made[0]
        broker.clock.ms = token.issue_timestamp_ms + 99_000
        wire, answer = await by_token(broker, token.token_id, token.hmac)
        assert (answer.error_code, answer.session_lifetime_ms) == (ErrorCode.NONE, 1000)
        described: Any = await (await by_password(broker, "bob")).ask(DescribeDelegationTokenRequest(owners=None), 3)
        (each,) = described.tokens
        assert (each.token_id, bytes(each.hmac)) == (token.token_id, bytes(token.hmac))
        assert [one.principal_name for one in each.renewers] == ["bob"]
        await wire.ask(MetadataRequest(topics=[]), 9)
        broker.clock.ms += 1001
        with pytest.raises(ConnectionError):
            await wire.ask(MetadataRequest(topics=[]), 9)

    play(make, use)


def test_every_version() -> None:
    async def scenario(broker: InProcessBroker, _: Wire) -> None:
        alice = await by_password(broker, "alice")
        for version in range(4):
            requester = "alice" if version == 3 else ""
            made: Any = await alice.ask(creation("bob"), version)
            assert (made.principal_name, made.token_requester_principal_name) == ("alice", requester)
            described: Any = await alice.ask(DescribeDelegationTokenRequest(owners=None), version)
            (each,) = described.tokens
            assert (each.principal_name, each.token_requester_principal_name) == ("alice", requester)
            assert (each.token_id, bytes(each.hmac)) == (made.token_id, bytes(made.hmac))
            for request in (renewal(made.hmac), expiry(made.hmac)):
                answer: Any = await alice.ask(request, min(version, 2))
                assert answer.error_code == ErrorCode.NONE

    play(scenario)


def test_a_token_makes_no_tokens() -> None:
    async def scenario(broker: InProcessBroker, _: Wire) -> None:
        alice = await by_password(broker, "alice")
        made: Any = await alice.ask(creation(), 3)
        wire, _ = await by_token(broker, made.token_id, made.hmac)
        for request in (creation(), renewal(made.hmac), expiry(made.hmac), DescribeDelegationTokenRequest(owners=None)):
            assert await code_of(wire, request) is ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
        assert list(await owners_seen(alice)) == [made.token_id]

    play(scenario)


def test_who_renews_and_who_expires() -> None:
    async def scenario(broker: InProcessBroker, _: Wire) -> None:
        alice, bob, carol = [await by_password(broker, each) for each in ("alice", "bob", "carol")]
        made: Any = await alice.ask(creation("bob", lifetime_ms=5000), 3)
        start_ms = broker.clock.now_ms()
        broker.clock.ms += 100
        for wire, period_ms, end_ms in ((alice, 50, 150), (bob, 1000, 1100), (alice, 10_000, 5000), (bob, -1, 5000)):
            renewed: Any = await wire.ask(renewal(made.hmac, period_ms), 2)
            assert (renewed.error_code, renewed.expiry_timestamp_ms - start_ms) == (ErrorCode.NONE, end_ms)
        shortened: Any = await bob.ask(expiry(made.hmac, 200), 2)
        assert (shortened.error_code, shortened.expiry_timestamp_ms - start_ms) == (ErrorCode.NONE, 300)
        for request in (renewal(made.hmac), expiry(made.hmac), expiry(made.hmac, 1)):
            refused: Any = await carol.ask(request, 2)
            assert refused.error_code == ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
            assert refused.expiry_timestamp_ms == -1
        for hmac in (b"", made.hmac[:-1], made.hmac + b"x"):
            assert await code_of(alice, renewal(hmac)) is ErrorCode.DELEGATION_TOKEN_NOT_FOUND
            assert await code_of(alice, expiry(hmac)) is ErrorCode.DELEGATION_TOKEN_NOT_FOUND
        broker.clock.ms += 201
        assert await code_of(alice, renewal(made.hmac)) is ErrorCode.DELEGATION_TOKEN_EXPIRED
        assert await code_of(alice, expiry(made.hmac, 5)) is ErrorCode.DELEGATION_TOKEN_EXPIRED
        removed: Any = await bob.ask(expiry(made.hmac), 2)
        assert (removed.error_code, removed.expiry_timestamp_ms) == (ErrorCode.NONE, broker.clock.now_ms())
        assert await code_of(alice, expiry(made.hmac)) is ErrorCode.DELEGATION_TOKEN_NOT_FOUND
        assert await owners_seen(alice) == {}

    play(scenario)


def test_expired_tokens_are_removed() -> None:
    async def scenario(broker: InProcessBroker, _: Wire) -> None:
        alice = await by_password(broker, "alice")
        short: Any = await alice.ask(creation(lifetime_ms=10), 3)
        long: Any = await alice.ask(creation(), 3)
        broker.clock.ms += 11
        assert len(await owners_seen(alice)) == 2
        await broker.server.serving.member.remove_expired_tokens()
        assert list(await owners_seen(alice)) == [long.token_id]
        _, answer = await by_token(broker, short.token_id, short.hmac)
        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED

    play(scenario)


def test_rights() -> None:
    async def scenario(broker: InProcessBroker, _: Wire) -> None:
        admin, alice, bob, carol = [await by_password(broker, each) for each in USERS]

        async def allow(resource_type: ResourceType, name: str, operation: AclOperation) -> None:
            answer: Any = await admin.ask(CreateAclsRequest(creations=[acl(resource_type, name, operation)]), 3)
            assert answer.results[0].error_code == ErrorCode.NONE

        refused: Any = await alice.ask(creation(owner="bob"), 3)
        assert refused.error_code == ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED
        assert (refused.principal_name, refused.token_requester_principal_name) == ("bob", "alice")
        assert (refused.token_id, refused.hmac, refused.max_timestamp_ms) == ("", b"", -1)
        await allow(ResourceType.USER, "User:bob", AclOperation.CREATE_TOKENS)
        bobs: Any = await alice.ask(creation(owner="bob"), 3)
        assert (bobs.principal_name, bobs.token_requester_principal_name) == ("bob", "alice")
        assert await code_of(alice, creation(owner="carol")) is ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED
        wire, _ = await by_token(broker, bobs.token_id, bobs.hmac)
        assert str(wire.connection.principal) == "User:bob"
        assert await code_of(alice, renewal(bobs.hmac)) is ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH

        carols: Any = await carol.ask(creation("admin"), 3)
        admins: Any = await admin.ask(creation(), 3)
        assert await owners_seen(alice) == {bobs.token_id: "bob"}
        assert await owners_seen(admin) == {bobs.token_id: "bob", carols.token_id: "carol", admins.token_id: "admin"}
        assert await owners_seen(admin, "admin") == {carols.token_id: "carol", admins.token_id: "admin"}
        await allow(ResourceType.DELEGATION_TOKEN, carols.token_id, AclOperation.DESCRIBE)
        assert await owners_seen(alice) == {bobs.token_id: "bob", carols.token_id: "carol"}
        await allow(ResourceType.USER, "User:admin", AclOperation.DESCRIBE_TOKENS)
        assert len(await owners_seen(alice)) == 3
        assert await owners_seen(alice, "carol") == {carols.token_id: "carol"}
        assert await owners_seen(bob, "carol") == {}

    play(scenario, settings={**TOKENS, **ACLS})


def test_creations_that_are_refused() -> None:
    async def scenario(broker: InProcessBroker, _: Wire) -> None:
        alice = await by_password(broker, "alice")
        group = creation("bob")
        group.renewers[0].principal_type = "Group"
        assert await code_of(alice, group) is ErrorCode.INVALID_PRINCIPAL_TYPE
        nameless = creation(owner="bob")
        nameless.owner_principal_type = None
        assert await code_of(alice, nameless) is ErrorCode.UNKNOWN_SERVER_ERROR
        strange = creation(owner="bob")
        strange.owner_principal_type = "Group"
        made: Any = await alice.ask(strange, 3)
        _, answer = await by_token(broker, made.token_id, made.hmac)
        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED, "clients are of the type User"

    play(scenario)


@pytest.mark.parametrize(
    "settings",
    [{}, {"delegation.token.secret.key": "", "delegation.token.master.key": "counts only without the other"}],
)
def test_without_a_secret_key_there_are_none(settings: Mapping[str, str]) -> None:
    async def scenario(broker: InProcessBroker, _: Wire) -> None:
        alice = await by_password(broker, "alice")
        for request in (creation(), renewal(b""), expiry(b""), DescribeDelegationTokenRequest(owners=None)):
            assert await code_of(alice, request) is ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
        _, answer = await by_token(broker, "x" * 22, b"x" * 64)
        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED

    play(scenario, settings=settings)


def test_the_old_name_of_the_secret_key() -> None:
    async def scenario(broker: InProcessBroker, _: Wire) -> None:
        assert await code_of(await by_password(broker, "alice"), creation()) is ErrorCode.NONE

    play(scenario, settings={"delegation.token.master.key": "x"})


def test_in_plain_text_nobody_knows_who_asks() -> None:
    async def scenario(_: InProcessBroker, wire: Wire) -> None:
        for request in (creation(), renewal(b""), expiry(b""), DescribeDelegationTokenRequest(owners=[])):
            assert await code_of(wire, request) is ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED

    play_scenarios(scenario, **TOKENS)


@pytest.mark.parametrize(
    ("protocol", "principal", "is_allowed"),
    [
        ("PLAINTEXT", Principal("User", "alice"), False),
        ("SSL", ANONYMOUS, False),
        ("SSL", Principal("User", "alice"), True),
        ("SASL_SSL", Principal("User", "alice"), True),
        ("SASL_PLAINTEXT", ANONYMOUS, True),
        ("SASL_SSL", Principal("User", "alice", has_token=True), False),
        ("SSL", Principal("User", "alice", has_token=True), False),
    ],
)
def test_who_may_ask(protocol: str, principal: Principal, is_allowed: bool) -> None:
    handlers = DelegationTokenHandlers(None, OPEN, ManualClock())
    context = RequestContext(2, None, "127.0.0.1", "L", principal, protocol)
    answers = [
        handlers.create_delegation_token(context, creation()),
        handlers.renew_delegation_token(context, renewal(b"")),
        handlers.expire_delegation_token(context, expiry(b"")),
        handlers.describe_delegation_token(context, DescribeDelegationTokenRequest(owners=[])),
    ]
    expected = (
        ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED if is_allowed else ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
    )
    for each in answers:
        answer: Any = asyncio.run(each)
        assert answer.error_code == expected


def test_nothing_secret_is_logged_or_described(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    hmacs = []

    async def scenario(broker: InProcessBroker, _: Wire) -> None:
        alice = await by_password(broker, "alice")
        made: Any = await alice.ask(creation("bob"), 3)
        hmacs.append(bytes(made.hmac))
        await alice.ask(renewal(made.hmac), 2)
        await alice.ask(DescribeDelegationTokenRequest(owners=None), 3)
        wire, _ = await by_token(broker, made.token_id, made.hmac)
        await wire.ask(renewal(made.hmac), 2)
        await by_token(broker, made.token_id, made.hmac[::-1])
        await (await by_password(broker, "carol")).ask(expiry(made.hmac), 2)
        await alice.ask(expiry(made.hmac), 2)
        resource = DescribeConfigsRequest.DescribeConfigsResource(
            resource_type=4, resource_name="0", configuration_keys=None
        )
        described: Any = await alice.ask(DescribeConfigsRequest(resources=[resource]), 4)
        values = {each.name: each.value for each in described.results[0].configs}
        assert values["delegation.token.secret.key"] is None
        assert values["delegation.token.max.lifetime.ms"] == "100000"

    play(scenario)
    (hmac,) = hmacs
    assert "Created a delegation token" in caplog.text
    for secret in (base64.b64encode(hmac).decode(), hmac.hex(), repr(hmac)[2:-1], *SECRET_KEY.values()):
        assert secret not in caplog.text
