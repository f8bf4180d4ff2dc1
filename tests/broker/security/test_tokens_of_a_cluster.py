"""Tokens created through one broker are valid on all of them, also when another kind of broker writes the change."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from broker.security.delegation_token_manager import DelegationTokenManager, SignedToken
from cluster.security.delegation_token import CHANGES, TOKENS, token_path
from cluster.security.principal import Principal
from protocol.errors import ApiError, ErrorCode
from tests.kit.in_process_cluster import InProcessCluster
from zookeeper.coordination import Coordination, CoordinationError

ALICE, BOB = Principal("User", "alice"), Principal("User", "bob")


def play(scenario: Callable[[InProcessCluster, Coordination], Awaitable[None]]) -> None:
    """Run on two brokers, with a separate session for the test."""

    async def run() -> None:
        settings = {"delegation_token_secret_key": "secret", "controlled_shutdown_max_retries": "1"}
        async with InProcessCluster(2, **settings) as cluster:
            session = cluster.ensemble.session()
            await session.connect()
            await scenario(cluster, session)
            await session.close()

    asyncio.run(run())


def tokens_of(cluster: InProcessCluster, broker_id: int) -> DelegationTokenManager:
    tokens = cluster.brokers[broker_id].serving.member.delegation_tokens
    assert tokens is not None
    return tokens


async def made_at(cluster: InProcessCluster, broker_id: int, lifetime_ms: int = 100_000) -> SignedToken:
    return await tokens_of(cluster, broker_id).create(ALICE, ALICE, (BOB,), lifetime_ms)


async def refusal(change: Awaitable[int]) -> ErrorCode:
    with pytest.raises(ApiError) as caught:
        await change
    return caught.value.error_code


def test_what_one_broker_has_made_the_other_knows_at_once() -> None:
    async def scenario(cluster: InProcessCluster, session: Coordination) -> None:
        token, hmac = await made_at(cluster, 0)
        other = tokens_of(cluster, 1)
        assert await other.find(lambda _: True) == [SignedToken(token, hmac)]
        found = await other.credential(token.token_id, "SCRAM-SHA-256")
        assert found is not None
        assert (found.owner, found.expiry_ms) == ("alice", token.expiry_ms)
        end_ms = await other.renew(BOB, hmac, 50_000)
        (renewed,) = await tokens_of(cluster, 0).find(lambda _: True)
        assert (renewed.token.expiry_ms, renewed.token.max_ms) == (end_ms, token.max_ms)
        await tokens_of(cluster, 0).expire(ALICE, hmac, -1)
        assert await other.credential(token.token_id, "SCRAM-SHA-256") is None
        assert await refusal(other.renew(BOB, hmac, -1)) is ErrorCode.DELEGATION_TOKEN_NOT_FOUND
        notices = (await session.children(CHANGES))[0]
        told = [(await session.get(f"{CHANGES}/{name}"))[0] for name in sorted(notices)]
        assert told == [token.token_id.encode()] * 3
        assert all(name.startswith("token_change_") for name in notices)

    play(scenario)


def test_both_change_a_token_at_once() -> None:
    async def scenario(cluster: InProcessCluster, session: Coordination) -> None:
        token, hmac = await made_at(cluster, 0)
        await asyncio.gather(
            *(tokens_of(cluster, number % 2).renew(ALICE, hmac, 1000 * number) for number in range(1, 9))
        )
        assert (await session.get(token_path(token.token_id)))[1].version == 8
        ends = await asyncio.gather(
            tokens_of(cluster, 0).expire(ALICE, hmac, -1),
            *(tokens_of(cluster, 1).renew(BOB, hmac, 5000) for _ in range(4)),
            return_exceptions=True,
        )
        refused = [each for each in ends if not isinstance(each, int)]
        assert all(isinstance(each, ApiError) for each in refused)
        assert {each.error_code for each in refused if isinstance(each, ApiError)} <= {
            ErrorCode.DELEGATION_TOKEN_NOT_FOUND
        }
        assert (await session.children(TOKENS))[0] == [], "what was removed is not made again by who renews it"

    play(scenario)


def test_the_controller_alone_removes_expired_tokens() -> None:
    async def scenario(cluster: InProcessCluster, session: Coordination) -> None:
        lasting, _ = await made_at(cluster, 1)
        for _ in range(3):
            await made_at(cluster, 0, lifetime_ms=1)
        await asyncio.sleep(0.01)
        members = [each.serving.member for each in cluster.brokers.values()]
        for member in members:
            if not member.controller.is_active:
                await member.remove_expired_tokens()
        assert len((await session.children(TOKENS))[0]) == 4
        for member in members:
            await member.remove_expired_tokens()
        assert (await session.children(TOKENS))[0] == [lasting.token_id]

    play(scenario)


def test_without_a_tree_nothing_is_known_of_tokens(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(cluster: InProcessCluster, session: Coordination) -> None:
        token, hmac = await made_at(cluster, 0, lifetime_ms=1)
        tokens = tokens_of(cluster, 0)
        await asyncio.sleep(0.01)
        await cluster.brokers[0].serving.coordination.membership.coordination.close()
        await tokens.remove_expired()
        assert await refusal(tokens.renew(ALICE, hmac, -1)) is ErrorCode.REQUEST_TIMED_OUT
        with pytest.raises(CoordinationError):
            await tokens.credential(token.token_id, "SCRAM-SHA-256")
        assert len((await session.children(TOKENS))[0]) == 1

    play(scenario)
    assert "Expired delegation tokens are removed in the next round" in caplog.text


def test_tokens_that_are_not_understood_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(cluster: InProcessCluster, session: Coordination) -> None:
        good, bad = await made_at(cluster, 0), await made_at(cluster, 0)
        await session.create(token_path("empty"), b"")
        await session.create(token_path("no token id"), b"{}")
        await session.set(token_path(bad.token.token_id), b"nonsense")
        tokens = tokens_of(cluster, 1)
        assert await tokens.find(lambda _: True) == [good]
        assert await tokens.credential("empty", "SCRAM-SHA-256") is None
        assert await refusal(tokens.renew(ALICE, bad.hmac, -1)) is ErrorCode.UNKNOWN_SERVER_ERROR
        await tokens.remove_expired()
        assert len((await session.children(TOKENS))[0]) == 4

    play(scenario)
    assert "until it is rewritten, nobody can use the token" in caplog.text
