"""Quotas are set, described and stored as in Kafka; `tests/parity` compares the answers with Kafka's."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from protocol.errors import ErrorCode
from protocol.messages.quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)
from protocol.messages.security import AlterUserScramCredentialsRequest
from tests.kit.in_process import InProcessBroker, Wire, play
from zookeeper.coordination import Coordination, Watch, ZnodeStat

Parts = dict[str, str | None]
Answer = list[tuple[Parts, dict[str, float]]]
ALICE: Parts = {"user": "alice"}
ALICE_APP: Parts = {"user": "alice", "client-id": "app"}
BOTH_DEFAULTS: Parts = {"user": None, "client-id": None}
ODD: Parts = {"user": "CN=Bob, O=a/b", "client-id": "50% + *"}
ADDRESS: Parts = {"ip": "10.0.0.1"}


async def alter(
    client: Wire, *entries: tuple[Parts, dict[str, float | None]], validate_only: bool = False
) -> list[tuple[ErrorCode, str | None]]:
    """The result for each entity."""
    request = AlterClientQuotasRequest(
        entries=[
            AlterClientQuotasRequest.EntryData(
                entity=[
                    AlterClientQuotasRequest.EntityData(entity_type=kind, entity_name=name)
                    for kind, name in parts.items()
                ],
                ops=[
                    AlterClientQuotasRequest.OpData(key=key, value=value or 0.0, remove=value is None)
                    for key, value in changes.items()
                ],
            )
            for parts, changes in entries
        ],
        validate_only=validate_only,
    )
    answer = await client.ask(request, 1)
    assert isinstance(answer, AlterClientQuotasResponse)
    return [(ErrorCode(entry.error_code), entry.error_message) for entry in answer.entries]


async def described(client: Wire, *components: tuple[str, int, str | None], strict: bool = False) -> Answer:
    """Entities and their quotas."""
    component = DescribeClientQuotasRequest.ComponentData
    request = DescribeClientQuotasRequest(
        components=[component(entity_type=kind, match_type=how, match=name) for kind, how, name in components],
        strict=strict,
    )
    answer = await client.ask(request, 1)
    assert isinstance(answer, DescribeClientQuotasResponse)
    assert answer.entries is not None
    return [
        ({part.entity_type: part.entity_name for part in entry.entity}, {each.key: each.value for each in entry.values})
        for entry in answer.entries
    ]


DONE = (ErrorCode.NONE, None)
EVERYTHING: Answer = [
    (ALICE, {"producer_byte_rate": 1000.0, "request_percentage": 12.5}),
    ({"client-id": None}, {"consumer_byte_rate": 5.0}),
    (BOTH_DEFAULTS, {"controller_mutation_rate": 0.5}),
    (ODD, {"producer_byte_rate": 3.0}),
    (ALICE_APP, {"producer_byte_rate": 2.0}),
    (ADDRESS, {"connection_creation_rate": 7.0}),
]


async def set_everything(broker: InProcessBroker, client: Wire) -> None:
    entries: Sequence[tuple[Parts, dict[str, float | None]]] = [
        (parts, dict(quotas.items())) for parts, quotas in EVERYTHING
    ]
    assert await alter(client, *entries, validate_only=True) == [DONE] * len(EVERYTHING)
    assert await described(client) == [], "it was only to be judged"
    assert await alter(client, *entries) == [DONE] * len(EVERYTHING)
    assert await described(client) == EVERYTHING
    tree = broker.server.serving.coordination.membership.coordination
    path = "/config/users/CN%3DBob%2C%20O%3Da%2Fb/clients/50%25%20%2B%20%2A"
    assert (await tree.get(path))[0] == b'{"version":1,"config":{"producer_byte_rate":"3"}}'
    assert (await tree.get("/config/users/<default>/clients/<default>"))[0] is not None


async def find_everything(_broker: InProcessBroker, client: Wire) -> None:
    assert await described(client) == EVERYTHING
    assert await described(client, ("user", 0, "alice")) == [EVERYTHING[0], EVERYTHING[4]]
    assert await described(client, ("user", 0, "alice"), strict=True) == [EVERYTHING[0]]
    assert await described(client, ("user", 1, None), ("client-id", 1, None)) == [EVERYTHING[2]]
    assert await described(client, ("client-id", 2, None)) == EVERYTHING[1:5]
    assert await described(client, ("ip", 2, None)) == EVERYTHING[5:]
    assert await alter(client, (ALICE, {"producer_byte_rate": None, "never_set": None})) == [DONE]
    assert await alter(client, (ALICE_APP, {"producer_byte_rate": None})) == [DONE]
    assert await described(client, ("user", 0, "alice")) == [(ALICE, {"request_percentage": 12.5})]


def test_quotas_are_set_and_outlive_the_broker() -> None:
    play(set_everything, find_everything)


async def refuse(_broker: InProcessBroker, client: Wire) -> None:
    rate: dict[str, float | None] = {"producer_byte_rate": 1.0}
    outcomes = await alter(
        client,
        ({}, rate),
        ({"planet": "a"}, rate),
        ({"user": ""}, rate),
        ({"ip": "10.0.0.1", "user": "a"}, rate),
        ({"ip": "10.0.0.256"}, {"connection_creation_rate": 1.0}),
        ({"ip": "::1"}, {"connection_creation_rate": 1.0}),
        (ADDRESS, {"connection_creation_rate": 1.5}),
        (ALICE, {"producer_byte_rate": 1.0, "unknown": 1.0}),
        ({"user": "bob"}, {"SCRAM-SHA-512": 1.0}),
        ({"user": "carol"}, rate),
    )
    refused = ErrorCode.INVALID_REQUEST
    assert outcomes == [
        (refused, "Invalid empty client quota entity"),
        (refused, "Unhandled client quota entity type: planet"),
        (refused, "Empty user not supported"),
        (refused, "Invalid quota entity combination, IP entity should not be used with user/client ID entity."),
        (refused, "10.0.0.256 is not a valid IP or resolvable host."),
        (refused, "%3A%3A1 is not a valid IP or resolvable host."),
        (refused, "Configuration connection_creation_rate must be a INT value"),
        (refused, "Invalid configuration key unknown"),
        (ErrorCode.UNKNOWN_SERVER_ERROR, None),
        DONE,
    ]
    assert await described(client) == [({"user": "carol"}, {"producer_byte_rate": 1.0})]


def test_a_refused_entity_does_not_hold_back_the_others() -> None:
    play(refuse)


@pytest.mark.parametrize(
    ("components", "error_code"),
    [
        ([("user", 0, "a"), ("user", 1, None)], ErrorCode.INVALID_REQUEST),
        ([("", 0, "a")], ErrorCode.INVALID_REQUEST),
        ([("planet", 0, "a")], ErrorCode.UNSUPPORTED_VERSION),
        ([("client-id", 2, None), ("ip", 2, None)], ErrorCode.INVALID_REQUEST),
        ([("user", 7, None)], ErrorCode.UNKNOWN_SERVER_ERROR),
        ([("user", 0, None)], ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
def test_bad_filters(components: list[tuple[str, int, str | None]], error_code: ErrorCode) -> None:
    async def ask(_broker: InProcessBroker, client: Wire) -> None:
        component = DescribeClientQuotasRequest.ComponentData
        parts = [component(entity_type=kind, match_type=how, match=name) for kind, how, name in components]
        answer = await client.ask(DescribeClientQuotasRequest(components=parts, strict=False), 1)
        assert isinstance(answer, DescribeClientQuotasResponse)
        assert (answer.error_code, answer.entries) == (error_code, None)

    play(ask)


async def nodes(broker: InProcessBroker, path: str = "/config/users") -> list[str]:
    """The paths below a node in the coordination tree."""
    tree = broker.server.serving.coordination.membership.coordination
    below = [f"{path}/{name}" for name in sorted((await tree.children(path))[0])]
    return [each for node in below for each in (node, *await nodes(broker, node))]


async def take_away(broker: InProcessBroker, client: Wire) -> None:
    rate: dict[str, float | None] = {"producer_byte_rate": 1.0}
    none: dict[str, float | None] = {"producer_byte_rate": None}
    user, one, other = "/config/users/alice", "/config/users/alice/clients/app", "/config/users/alice/clients/b"
    entities: list[Parts] = [ALICE, ALICE_APP, {"user": "alice", "client-id": "b"}]
    assert await alter(client, *((parts, rate) for parts in entities)) == [DONE] * 3
    assert await alter(client, (ALICE, none)) == [DONE]
    assert await nodes(broker) == [user, f"{user}/clients", one, other], "there are others below it"
    assert await alter(client, (ALICE_APP, none), ({"user": "nobody"}, none)) == [DONE] * 2
    assert await nodes(broker) == [user, f"{user}/clients", other]
    assert await alter(client, (entities[2], none)) == [DONE]
    assert await nodes(broker) == []
    assert await alter(client, (ALICE, rate), (ALICE_APP, rate)) == [DONE] * 2
    assert await alter(client, (ALICE_APP, none)) == [DONE]
    assert await nodes(broker) == [user], "the user has a quota"


def test_what_holds_no_quota_is_taken_out_of_the_tree() -> None:
    play(take_away)


def be_slow(tree: Coordination) -> None:
    """Make a read take turns of the event loop, as in a cluster."""
    get = tree.get

    async def get_slowly(path: str, watch: Watch | None = None) -> tuple[bytes | None, ZnodeStat]:
        found = await get(path, watch)
        for _ in range(20):
            await asyncio.sleep(0)
        return found

    tree.get = get_slowly  # type: ignore[method-assign]


async def alter_both(broker: InProcessBroker, client: Wire) -> None:
    tree = broker.server.serving.coordination.membership.coordination
    be_slow(tree)
    other = broker.connect()
    upsertion = AlterUserScramCredentialsRequest.ScramCredentialUpsertion(
        name="alice", mechanism=1, iterations=4096, salt=b"salt", salted_password=b"x" * 32
    )
    scram = AlterUserScramCredentialsRequest(deletions=[], upsertions=[upsertion])
    for number in range(5):
        rate: dict[str, float | None] = {"producer_byte_rate": float(number)}
        answers = await asyncio.gather(other.ask(scram, 0), alter(client, (ALICE, rate)), other.ask(scram, 0))
        assert answers[1] == [DONE]
        assert await described(client) == [(ALICE, {"producer_byte_rate": number})]
        kept = (await tree.get("/config/users/alice"))[0] or b""
        assert b"SCRAM-SHA-256" in kept
        assert await alter(client, (ALICE, {"producer_byte_rate": None})) == [DONE]
        upsertion.iterations += 1


def test_credentials_and_quotas_of_a_user_are_changed_one_after_the_other() -> None:
    play(alter_both)
