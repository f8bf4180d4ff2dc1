"""For an unknown user name, SCRAM offers the same parameters as for a real user, consistently on all brokers."""

from __future__ import annotations

import asyncio

import pytest

from broker.security.scram_credentials import ScramCredentials
from cluster.quotas.entities import QuotaEntity
from cluster.znodes import SCRAM_SECRET
from protocol.scram_mechanisms import HASHES, MIN_ITERATIONS
from security.sasl_exchange import ScramCredential
from tests.kit.environment import SeededRandom
from tests.kit.in_process_cluster import InProcessCluster

SHA_256, SHA_512 = HASHES
STRANGERS = [f"stranger-{number}" for number in range(40)]


def credentials_of(cluster: InProcessCluster, broker_id: int) -> ScramCredentials:
    """The credentials as a freshly started broker has them."""
    coordination = cluster.brokers[broker_id].serving.coordination
    return ScramCredentials(coordination.membership, coordination.metadata, SeededRandom(broker_id))


async def set_users(cluster: InProcessCluster, iterations: dict[str, int]) -> None:
    """Give these users SCRAM-SHA-256 credentials, and wait until every broker knows them."""
    changes = {}
    for user, count in iterations.items():
        credential = ScramCredential.from_salted_password(SHA_256, user.encode(), b"salt", count)
        changes[QuotaEntity(user).resource] = {SHA_256: credential.to_text()}
    for broker in cluster.brokers.values():
        assert not await broker.serving.member.dynamic_configs.alter_configs(changes)


async def iterations_of(credentials: ScramCredentials, mechanism: str = SHA_256) -> list[int]:
    return [(await credentials.find(each, mechanism)).iterations for each in STRANGERS]


def test_strangers_look_like_users_on_every_broker() -> None:
    async def run() -> None:
        async with InProcessCluster(2) as cluster:
            await set_users(cluster, {"alice": MIN_ITERATIONS, "bob": 8192})
            first, second = (credentials_of(cluster, each) for each in range(2))
            assert (await first.find("bob", SHA_256)).iterations == 8192
            found = [await first.find(each, SHA_256) for each in STRANGERS]
            assert found == [await second.find(each, SHA_256) for each in STRANGERS]
            assert {each.iterations for each in found} == {MIN_ITERATIONS, 8192}, "those in use"
            assert len({each.salt for each in found}) == len(STRANGERS)
            assert found == [await credentials_of(cluster, 1).find(each, SHA_256) for each in STRANGERS]
            assert set(await iterations_of(first, SHA_512)) == {MIN_ITERATIONS}, "nobody has that one"

    asyncio.run(run())


def test_a_stranger_changes_only_when_its_number_is_no_longer_in_use() -> None:
    async def run() -> None:
        async with InProcessCluster(1) as cluster:
            await set_users(cluster, {"alice": MIN_ITERATIONS, "bob": 8192, "carol": 8192})
            credentials = credentials_of(cluster, 0)
            before = await iterations_of(credentials)
            await set_users(cluster, {"carol": 4096, "dave": 10_000})
            after = await iterations_of(credentials)
            assert all(now in {was, 10_000} for was, now in zip(before, after, strict=True))

    asyncio.run(run())


@pytest.mark.parametrize("loser", [0, 1])
def test_brokers_that_need_the_secret_at_once_agree(loser: int) -> None:
    async def run() -> None:
        async with InProcessCluster(2) as cluster:
            both = [credentials_of(cluster, each) for each in (loser, 1 - loser)]
            one, other = await asyncio.gather(*(each.find("nobody", SHA_256) for each in both))
            assert one == other
            coordination = cluster.brokers[0].serving.coordination.membership.coordination
            assert (await coordination.get(SCRAM_SECRET))[1].version == 0

    asyncio.run(run())
