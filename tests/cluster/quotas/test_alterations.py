"""Values and entities that AlterClientQuotas accepts and refuses, and those that match a filter, in Kafka's words."""

from __future__ import annotations

from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.quotas.alterations import (
    ANY_NAME,
    DEFAULT_ONLY,
    EXACT,
    Component,
    altered,
    check_config,
    check_filter,
    checked_entity,
    matches,
    shown_quotas,
)
from cluster.quotas.entities import DEFAULT, Name, QuotaEntity
from protocol.errors import ApiError, ErrorCode

ALICE = QuotaEntity(user="alice")
ADDRESS = QuotaEntity(ip="10.0.0.1")
INVALID_COMBINATION = "Invalid quota entity combination"


@pytest.mark.parametrize(
    ("key", "value", "stored"),
    [
        ("producer_byte_rate", 1024.0, "1024"),
        ("producer_byte_rate", 1023.9999999, "1024"),
        ("consumer_byte_rate", 0.0, "0"),
        ("consumer_byte_rate", nan, "0"),
        ("consumer_byte_rate", 2.0**63, "9223372036854775807"),
        ("request_percentage", 50.0, "50.0"),
        ("request_percentage", 12_345_678.0, "1.2345678E7"),
        ("controller_mutation_rate", 0.0001, "1.0E-4"),
        ("controller_mutation_rate", inf, "Infinity"),
    ],
)
def test_values_are_stored_as_kafka_writes_them(key: str, value: float, stored: str) -> None:
    assert altered(ALICE, {"other": "1"}, [(key, value)]) == {"other": "1", key: stored}


@pytest.mark.parametrize(
    ("entity", "key", "value", "message"),
    [
        (ALICE, "producer_byte_rate", 1.5, "Configuration producer_byte_rate must be a LONG value"),
        (ALICE, "producer_byte_rate", -1.0, "Configuration producer_byte_rate must be a LONG value"),
        (ALICE, "producer_byte_rate", inf, "Configuration producer_byte_rate must be a LONG value"),
        (ALICE, "consumer_byte_rate", 1e300, "Configuration consumer_byte_rate must be a LONG value"),
        (ALICE, "connection_creation_rate", 1.0, "Invalid configuration key connection_creation_rate"),
        (ADDRESS, "connection_creation_rate", 2.0**31, "Configuration connection_creation_rate must be a INT value"),
        (ADDRESS, "producer_byte_rate", 1.0, "Invalid configuration key producer_byte_rate"),
        (QuotaEntity(client_id=DEFAULT), "SCRAM-SHA-256", 1.0, "Invalid configuration key SCRAM-SHA-256"),
    ],
)
def test_values_that_kafka_refuses(entity: QuotaEntity, key: str, value: float, message: str) -> None:
    with pytest.raises(ApiError) as caught:
        altered(entity, {}, [(key, value)])
    assert (caught.value.error_code, caught.value.message) == (ErrorCode.INVALID_REQUEST, message)


def test_keys_are_removed_whether_known_or_not() -> None:
    assert altered(ALICE, {"a": "1", "SCRAM-SHA-256": "x"}, [("a", None), ("b", None), ("SCRAM-SHA-256", None)]) == {}


def test_credentials_are_no_quotas() -> None:
    with pytest.raises(ApiError) as caught:
        altered(ALICE, {}, [("SCRAM-SHA-256", 1.0)])
    assert caught.value.error_code is ErrorCode.UNKNOWN_SERVER_ERROR


def test_a_negative_rate_of_connections_is_not_stored() -> None:
    with pytest.raises(ApiError, match="Value must be at least 0"):
        check_config(ADDRESS, {"connection_creation_rate": "-1"})
    check_config(ADDRESS, {"connection_creation_rate": "0"})
    check_config(ALICE, {"producer_byte_rate": "-1", "SCRAM-SHA-256": "anything"})


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({}, "Invalid empty client quota entity"),
        ({"planet": "a"}, "Unhandled client quota entity type: planet"),
        ({"user": ""}, "Empty user not supported"),
        ({"client-id": "", "user": "a"}, "Empty client-id not supported"),
        ({"user": "a", "ip": None}, f"{INVALID_COMBINATION}, IP entity should not be used with user/client ID entity."),
    ],
)
def test_entities_that_kafka_refuses(parts: dict[str, str | None], message: str) -> None:
    with pytest.raises(ApiError) as caught:
        checked_entity(parts)
    assert (caught.value.error_code, caught.value.message) == (ErrorCode.INVALID_REQUEST, message)


def test_only_quotas_are_shown() -> None:
    config = {"request_percentage": "1.0E7", "producer_byte_rate": "5", "SCRAM-SHA-256": "secret"}
    assert shown_quotas(ALICE, config) == {"producer_byte_rate": 5, "request_percentage": 1e7}
    assert shown_quotas(ADDRESS, config) == {}
    with pytest.raises(ApiError):
        shown_quotas(ALICE, {"producer_byte_rate": "much"})


PART = st.one_of(st.none(), st.just(DEFAULT), st.sampled_from(["a", "b"]))
COMPONENTS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["user", "client-id"]), st.just(EXACT), st.sampled_from(["a", "b"])),
        st.tuples(st.sampled_from(["user", "client-id"]), st.sampled_from([DEFAULT_ONLY, ANY_NAME]), st.none()),
    ),
    unique_by=lambda each: each[0],
)


@given(PART, PART, COMPONENTS, st.booleans())
def test_filters_mean_what_the_model_says(
    user: Name, client_id: Name, components: list[tuple[str, int, str | None]], strict: bool
) -> None:
    """The model iterates over the parts of the entity, not of the filter."""
    expected = True
    asked = {kind: (how, name) for kind, how, name in components}
    for kind, part in (("user", user), ("client-id", client_id)):
        if kind not in asked:
            expected &= part is None or not strict
            continue
        how, name = asked[kind]
        expected &= part is not None and (how == ANY_NAME or (part is DEFAULT if how == DEFAULT_ONLY else part == name))
    filters = [Component(*each) for each in components]
    check_filter(filters)
    assert matches(QuotaEntity(user, client_id), filters, strict=strict) == expected
