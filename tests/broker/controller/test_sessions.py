"""Expired sessions, stale registrations, and lost answers of the tree (M10)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from broker.controller.cluster_membership import ClusterMembership
from broker.zookeeper.kafka_zk_client import ClusterError
from cluster import znodes
from cluster.controller.commands import Command, CommandFence, LeaderAndIsr
from cluster.controller.topics import NewTopic
from cluster.metadata_image import BrokerImage
from cluster.znodes import BrokerRegistration
from protocol.errors import ApiError, ErrorCode
from tests.kit.controller.controller_cluster import CLUSTER_ID, ControllerCluster, Member
from tests.kit.coordination_fixtures import in_loop, in_virtual_time
from tests.kit.environment import SeededRandom
from zookeeper.coordination import ConnectionLossError


def losing(call: Callable[..., Awaitable[Any]], *, applied: bool) -> Callable[..., Awaitable[Any]]:
    """A call whose first answer is lost, before or after it took effect."""
    answers = iter([False])

    async def lossy(*args: Any, **kwargs: Any) -> Any:
        if next(answers, True):
            return await call(*args, **kwargs)
        if applied:
            await call(*args, **kwargs)
        raise ConnectionLossError("the connection was lost")

    return lossy


@in_loop
async def test_a_broker_whose_session_expires_comes_back_as_another_life() -> None:
    cluster = await ControllerCluster().start()
    await cluster.create("s", (3,))
    await cluster.create("t", (3, 2))
    member = cluster.members[3]
    epoch, session_id = member.epoch, member.session_id
    ended: list[int] = []

    async def began(_broker: object) -> None:
        """The controller sends its roles."""

    member.membership.on_session_change(lambda: ended.append(member.epoch), began)
    await member.expire()
    assert ended == [epoch], "it led nothing any more before it registered again"
    assert member.session_id != session_id
    await cluster.until("leaders", lambda: cluster.told("t", 2, (2,)) and cluster.told("s", 3, (3,)))
    await cluster.until("it was told", lambda: (role := member.role("s")) is not None and role.leader_epoch == 2)
    full = [each for each in member.inbox.commands if isinstance(each, LeaderAndIsr) and each.is_full]
    assert full[-1].broker_epoch == member.epoch
    assert not member.lost


@in_loop
async def test_only_commands_to_the_registration_that_lasts_are_obeyed() -> None:
    """Commands to the previous registration are refused, and so are those from the controller of a tree that was
    restored since.
    """
    cluster = await ControllerCluster().start()
    member = cluster.members[3]
    refused: list[ErrorCode] = []

    def command(broker_epoch: int) -> None:
        with pytest.raises(ApiError) as raised:
            member.fence.admit(Command(9, 99, broker_epoch))
        refused.append(raised.value.error_code)

    async def began(_broker: object) -> None:
        command(member.epoch + 100)

    member.membership.on_session_change(lambda: command(member.epoch), began)
    await member.expire()
    await cluster.until("it is back", lambda: cluster.all_know([1, 2, 3]))
    assert refused == [ErrorCode.STALE_BROKER_EPOCH] * 2


@in_loop
async def test_a_controller_whose_session_expires_resigns_and_follows() -> None:
    cluster = await ControllerCluster().start()
    await cluster.create("t", (1, 2, 3))
    old = cluster.members[1]
    term = old.cache.image.controller_epoch
    await old.expire()
    await cluster.until(
        "another term", lambda: cluster.everywhere(lambda each: each.cache.image.controller_epoch > term)
    )
    await cluster.until("it is back", lambda: cluster.all_know([1, 2, 3]))
    await cluster.until("one controller", lambda: sum(each.service.is_active for each in cluster.members.values()) == 1)
    await cluster.until("leaders", lambda: cluster.told("t", 2, (2, 3)) or cluster.told("t", 1, (1, 2, 3)))
    await cluster.create("u", (1, 2, 3))


@pytest.mark.parametrize("broker_id", [1, 3], ids=["the controller", "another broker"])
def test_a_broker_whose_registration_is_deleted_registers_again(broker_id: int) -> None:
    @in_loop
    async def scenario() -> None:
        cluster = await ControllerCluster().start()
        await cluster.create("t", (broker_id, 2))
        member = cluster.members[broker_id]
        epoch, session_id = member.epoch, member.session_id
        await cluster.members[2].membership.coordination.delete(znodes.broker_path(broker_id))
        await cluster.until("it is registered again", lambda: member.epoch > epoch)
        assert member.session_id != session_id
        await cluster.until("all know it", lambda: cluster.all_know([1, 2, 3]))
        await cluster.until("it has its role", lambda: (role := member.role("t")) is not None and role.leader == 2)
        assert not member.lost

    scenario()


@in_loop
async def test_a_registration_that_changes_or_ends_in_order_begins_no_session() -> None:
    cluster = await ControllerCluster().start()
    member = cluster.members[3]
    session_id = member.session_id
    await member.membership.publish_truncated_replicas({"t": (0,)})
    await member.membership.publish_truncated_replicas({"t": (1,)})
    await cluster.members[2].membership.coordination.exists(znodes.CLUSTER_ID)
    assert member.session_id == session_id
    await member.membership.close()
    await cluster.until("it is gone", lambda: cluster.members[1].cache.image.brokers.keys() == {1, 2})
    assert member.session_id == session_id


@in_loop
async def test_watches_are_set_anew_in_a_new_session() -> None:
    cluster = await ControllerCluster().start(2)
    second = cluster.members[2]
    await second.expire()
    await cluster.until("it is back", lambda: cluster.all_know([1, 2]))
    await cluster.members[1].configs.alter_configs({(4, ""): {"log.cleaner.threads": "2"}})
    await cluster.until("it heeds changes", lambda: second.cache.image.config(4, ""))
    await cluster.members.pop(1).kill()
    await cluster.until("it is the controller", lambda: second.service.is_active)


@in_loop
async def test_a_broker_does_not_join_another_cluster_in_a_new_session() -> None:
    """For example if another ZooKeeper answers at the address."""
    cluster = await ControllerCluster().start(2)
    member = cluster.members[2]
    session = cluster.ensemble.session()
    await session.connect()
    await session.set(znodes.CLUSTER_ID, znodes.encode_cluster_id("another"))
    await cluster.ensemble.expire(member.session_id)
    await cluster.until("it gives up", lambda: member.lost)
    assert "Invalid cluster.id in: meta.properties. Expected another, but read" in member.lost[0]
    assert await session.exists(znodes.broker_path(2)) is None


@in_loop
async def test_a_session_that_expires_before_the_broker_has_registered_is_followed_by_another() -> None:
    """Loading logs may take longer than the session timeout."""
    cluster = await ControllerCluster().start(1)
    member = cluster.members[2] = Member(cluster, 2)
    begin = member.membership.register

    async def register_in_an_expired_session(registration: BrokerRegistration) -> BrokerImage:
        expired = member.session_id
        await cluster.ensemble.expire(expired)
        broker = await begin(registration)
        assert member.session_id != expired
        return broker

    member.membership.register = register_in_an_expired_session  # type: ignore[method-assign]
    await member.start()
    await cluster.until("both know both", lambda: cluster.all_know([1, 2]))
    assert not member.lost


@in_loop
async def test_a_session_that_expires_amid_the_registration_is_followed_by_another() -> None:
    cluster = await ControllerCluster().start(1)
    member = cluster.members[2] = Member(cluster, 2)
    begin = member.membership._register
    lives = iter([True])

    async def expire_first(registration: BrokerRegistration) -> BrokerImage:
        broker = await begin(registration)
        if next(lives, False):
            await cluster.ensemble.expire(member.session_id)
        return broker

    member.membership._register = expire_first  # type: ignore[method-assign]
    await member.start()
    await cluster.until("both know both", lambda: cluster.all_know([1, 2]))
    assert not member.lost


@in_loop
async def test_a_broker_that_has_not_registered_does_not_join_another_cluster_in_a_new_session() -> None:
    cluster = await ControllerCluster().start(1)
    member = Member(cluster, 2)
    await member.membership.connect()
    await member.membership.create_or_get_cluster_id(CLUSTER_ID)
    await cluster.members[1].membership.coordination.set(znodes.CLUSTER_ID, znodes.encode_cluster_id("another"))
    await cluster.ensemble.expire(member.session_id)
    with pytest.raises(ClusterError, match="Expected another, but read"):
        await member.membership.register(BrokerRegistration(2, ()))
    assert member.lost


@in_loop
async def test_all_sessions_at_once() -> None:
    cluster = await ControllerCluster().start()
    await cluster.create("t", (1, 2, 3))
    for _ in range(3):
        await asyncio.gather(*[member.expire() for member in cluster.members.values()])
        await cluster.until("all are back", lambda: cluster.all_know([1, 2, 3]))
        await cluster.until(
            "one controller", lambda: sum(each.service.is_active for each in cluster.members.values()) == 1
        )
    await cluster.create("u", (1, 2, 3))
    state = await cluster.partition("t")
    await cluster.until("all know the leader", lambda: cluster.told("t", *state[:2]))


# -- existing registrations --------------------------------------------------------------------------------------------


async def twin_of(cluster: ControllerCluster, timeout_ms: int) -> ClusterMembership:
    """The membership of another process with broker id 1."""
    fence = CommandFence()
    random = SeededRandom(9)
    twin = ClusterMembership(cluster.ensemble, cluster.machine.clock, random, fence, session_timeout_ms=timeout_ms)
    await twin.connect()
    return twin


def registration_of(member: Member) -> Any:
    return member.membership._registration


@in_loop
async def test_a_registration_of_a_living_broker_is_respected() -> None:
    cluster = await ControllerCluster().start(1)
    twin = await twin_of(cluster, 20)
    with pytest.raises(ClusterError, match="already registered with the id 1"):
        await twin.register(registration_of(cluster.members[1]))
    assert cluster.members[1].service.is_active


@in_loop
async def test_a_registration_of_an_earlier_process_is_waited_for() -> None:
    cluster = await ControllerCluster().start(1)
    earlier = cluster.members[1]
    twin = await twin_of(cluster, 60_000)
    registering = asyncio.ensure_future(twin.register(registration_of(earlier)))
    await asyncio.sleep(0)
    assert not registering.done()
    await earlier.kill()
    assert (await registering).epoch > earlier.epoch


@in_loop
async def test_an_own_registration_of_an_earlier_session_is_removed() -> None:
    """KAFKA-7165: for the ensemble, the old session has not expired yet."""
    cluster = await ControllerCluster().start(1)
    membership = cluster.members[1].membership
    epoch = membership.broker_epoch
    membership._take_session()
    await membership._connect()
    assert (await membership.register(registration_of(cluster.members[1]))).epoch > epoch


@pytest.mark.parametrize("applied", [True, False])
@in_loop
async def test_a_lost_answer_to_a_registration_is_read_back(applied: bool) -> None:
    cluster = ControllerCluster()
    member = cluster.members[1] = Member(cluster, 1)
    coordination: Any = member.membership.coordination
    real = coordination.create
    lossy = losing(real, applied=applied)

    def create(path: str, *args: Any, **kwargs: Any) -> Any:
        return (lossy if path == "/brokers/ids/1" else real)(path, *args, **kwargs)

    coordination.create = create
    await member.start()
    stat = await coordination.exists("/brokers/ids/1")
    assert stat is not None
    assert stat.czxid == member.epoch


@pytest.mark.parametrize("applied", [True, False])
@in_loop
async def test_a_lost_answer_to_an_election_is_read_back(applied: bool) -> None:
    cluster = ControllerCluster()
    member = cluster.members[1] = Member(cluster, 1)
    coordination: Any = member.membership.coordination
    real = coordination.multi
    lossy = losing(real, applied=applied)

    def multi(operations: Any) -> Any:
        return (lossy if operations[0].path == "/controller" else real)(operations)

    coordination.multi = multi
    await member.start()
    assert member.service.is_active
    assert (await coordination.get("/controller_epoch"))[0] == b"1"
    await cluster.create("t", (1,))


@pytest.mark.parametrize("applied", [True, False])
@in_loop
async def test_a_controller_that_does_not_know_what_it_wrote_reads_the_tree(applied: bool) -> None:
    cluster = await ControllerCluster().start()
    await cluster.create("t", (1, 2, 3))
    coordination: Any = cluster.members[1].membership.coordination
    coordination.multi = losing(coordination.multi, applied=applied)
    outcome = (await cluster.members[1].service.create_topics([NewTopic("u", 1, 3)]))["u"]
    assert isinstance(outcome, ApiError)
    assert outcome.error_code is ErrorCode.NOT_CONTROLLER
    await cluster.until("another term", lambda: cluster.everywhere(lambda each: each.cache.image.controller_epoch == 2))
    await cluster.until(
        "all know what was written",
        lambda: cluster.everywhere(lambda each: ("u" in each.cache.image.topics) is applied),
    )


@pytest.mark.parametrize("answers", [True, False])
def test_a_tree_without_an_answer_is_waited_for_in_vain(answers: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        cluster = await ControllerCluster().start(1)
        membership = cluster.members[1].membership
        if not answers:
            monkeypatch.setattr(membership.coordination, "exists", lambda *_: asyncio.Event().wait())
        waiting = asyncio.create_task(membership.without_contact(5.0))
        await asyncio.sleep(4.9)
        assert not waiting.done()
        await asyncio.sleep(60)
        assert waiting.done() is not answers
        waiting.cancel()

    in_virtual_time(run)
