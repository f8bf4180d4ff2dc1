"""Every served API can fail on demand, selected by everything that a request has."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

import odradek
from broker.test_mode.error_answers import ERROR_FIELDS
from broker.test_mode.fault_rules import API_NAMES
from broker.test_mode.touched_resources import groups_of, partitions_of, transactional_ids_of
from protocol.api_keys import ApiKey
from protocol.errors import ErrorCode
from protocol.wire.schema import Request, Response, Struct
from tests.broker.network.effect_requests import Trial
from tests.broker.network.effects import CASES, Case
from tests.kit.wire_client import ConnectionClosed, WireClient

ERROR = ErrorCode.POLICY_VIOLATION
"""No handler answers it here."""


class Client:
    """A connection as trials use it."""

    def __init__(self, broker: odradek.Broker) -> None:
        self.wire = WireClient("127.0.0.1", int(broker.bootstrap_servers.rpartition(":")[2]))

    async def ask(self, request: Request, version: int) -> Any:
        return self.wire.ask(request, version)

    async def ask_together(self, asked: Sequence[tuple[Request, int]]) -> list[Response]:
        return [self.wire.ask(request, version) for request, version in asked]


@pytest.fixture(scope="module")
def broker() -> Iterator[odradek.Broker]:
    with odradek.Broker() as running:
        yield running


@pytest.fixture(scope="module")
def trial(broker: odradek.Broker) -> Trial:
    made = Trial(1)
    client = Client(broker)
    asyncio.run(made.build(client, flush_messages=None))
    client.wire.close()
    return made


def errors_in(value: Any) -> set[int]:
    """The error codes of a response."""
    if isinstance(value, list):
        return set().union(*map(errors_in, value))
    if not isinstance(value, Struct):
        return set()
    own = {getattr(value, name) for name in ERROR_FIELDS if name in value.declared_fields}
    return own.union(*(errors_in(getattr(value, name)) for name in value.declared_fields))


def selectors_of(request: Request, version: int) -> dict[str, Any]:
    """The selectors that the request matches, one of each kind."""
    found: dict[str, Any] = {
        "client_id": "wire-client", "principal": "User:ANONYMOUS", "version": version, "listener": "PLAINTEXT",
    }  # fmt: skip
    topics = [(topic, partition) for topic, partition in partitions_of(request, lambda _: None) if topic is not None]
    for topic, partition in topics[:1]:
        found["topic"] = topic
        if partition is not None:
            found["partition"] = partition
    for name, names in (("group", groups_of(request)), ("transactional_id", transactional_ids_of(request))):
        if names:
            found[name] = names[0]
    return found


def answered(broker: odradek.Broker, request: Request, version: int) -> set[int] | None:
    """The error codes of the answer; None if the connection was closed instead."""
    with WireClient("127.0.0.1", int(broker.bootstrap_servers.rpartition(":")[2])) as client:
        try:
            return errors_in(client.ask(request, version))
        except ConnectionClosed:
            return None


@pytest.mark.parametrize(
    "case", [each for each in CASES if not each.name or each.api_key is ApiKey.LIST_OFFSETS], ids=str
)
def test_an_api_fails_by_every_selector(case: Case, broker: odradek.Broker, trial: Trial) -> None:
    request, name = case.build(trial), API_NAMES[case.api_key]
    for selector, value in selectors_of(request, case.version).items():
        wrong = 99 if isinstance(value, int) else f"{value}-other"
        other = broker.fail(name, ERROR.name, **{selector: wrong})
        fault = broker.fail(name, ERROR.name, **{selector: value})
        codes = answered(broker, request, case.version)
        assert (other.hits, fault.hits) == (0, 1), selector
        assert codes is None or ERROR in codes, (selector, codes)
        assert codes is not None or case.api_key in {ApiKey.PRODUCE}, selector
        broker.clear_faults()


def test_every_served_api_has_a_case(broker: odradek.Broker) -> None:
    with pytest.raises(odradek.OdradekError) as refused:
        broker.fail("Nothing", ERROR.name)
    served = set(str(refused.value).partition("there are: ")[2].split(", "))
    tried = {API_NAMES[case.api_key] for case in CASES}
    between_brokers = {
        "AllocateProducerIds", "AlterPartition", "ControlledShutdown", "LeaderAndIsr", "StopReplica", "UpdateMetadata",
    }  # fmt: skip
    assert served - tried == between_brokers
