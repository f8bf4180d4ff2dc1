"""The most specific limit applies, and the clients that it names share it (KIP-13)."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.quotas.client_quota import MOST_REMEMBERED_CLIENTS, ClientQuota, MutationQuota, QuotaWindow
from cluster.quotas.entities import DEFAULT, EntityType, Name, QuotaEntity, QuotaLimits, Sharers, entity_of

WINDOW = QuotaWindow(11, 1000)
LEVELS: tuple[tuple[Name, Name], ...] = (
    ("alice", "app"),
    ("alice", DEFAULT),
    ("alice", None),
    (DEFAULT, "app"),
    (DEFAULT, DEFAULT),
    (DEFAULT, None),
    (None, "app"),
    (None, DEFAULT),
)
"""From the most to the least specific."""
NAMES = st.sampled_from(["alice", "bob"])
CLIENTS = st.sampled_from(["app", "job"])
ENTITIES = st.sampled_from(
    [each for each in product(["alice", "bob", DEFAULT, None], ["app", "job", DEFAULT, None]) if each != (None, None)]
)


@pytest.mark.parametrize("present", range(1, 2 ** len(LEVELS)))
def test_all_levels_of_precedence(present: int) -> None:
    limits = QuotaLimits({entity: number for number, entity in enumerate(LEVELS) if present & (1 << number)})
    expected = next(number for number in range(len(LEVELS)) if present & (1 << number))
    assert limits.limit(limits.sharers("alice", "app")) == expected


def naive(limits: dict[tuple[Name, Name], float], user: str, client_id: str) -> tuple[float | None, Sharers]:
    """Scan all limits, and keep the best match."""
    best: tuple[int, float, Sharers] | None = None
    for (of_user, of_client), limit in limits.items():
        if of_user not in (user, DEFAULT, None) or of_client not in (client_id, DEFAULT, None):
            continue
        rank = LEVELS.index(("alice" if of_user == user else of_user, "app" if of_client == client_id else of_client))
        if best is None or rank < best[0]:
            sharers = Sharers(user if of_user is not None else "", client_id if of_client is not None else "")
            best = rank, limit, sharers
    return (None, Sharers("", client_id)) if best is None else best[1:]


@given(st.dictionaries(ENTITIES, st.floats(1, 100), max_size=9), NAMES, CLIENTS)
def test_limits_equal_those_of_the_model(configured: dict[tuple[Name, Name], float], user: str, client_id: str) -> None:
    limits = QuotaLimits(configured)
    sharers = limits.sharers(user, client_id)
    assert (limits.limit(sharers), sharers) == naive(configured, user, client_id)


def test_a_client_without_an_id_has_only_quotas_of_its_user() -> None:
    limits = QuotaLimits({("alice", DEFAULT): 1, (None, DEFAULT): 2, (DEFAULT, None): 3})
    assert limits.limit(limits.sharers("alice", "")) == 3
    assert limits.limit(QuotaLimits({(None, DEFAULT): 2}).sharers("alice", "")) is None


def test_clients_of_a_user_share_its_limit() -> None:
    quota = ClientQuota(WINDOW)
    quota.set_limits(QuotaLimits({("alice", None): 100}))
    assert quota.record("alice", "app", 1000, 0) == 0
    assert quota.record("bob", "app", 10**9, 0) == 0
    assert quota.record("alice", "job", 100, 0) == 1000
    quota.take_back("alice", "job", 100, 0)
    assert quota.record("alice", "app", 0, 0) == 0
    assert quota.most_at_once("alice", "any", 0) == 1000
    assert quota.most_at_once("bob", "any", 0) == float("inf")


def test_a_default_limit_is_for_each_of_those_who_have_none() -> None:
    quota = ClientQuota(WINDOW)
    quota.set_limits(QuotaLimits({(None, DEFAULT): 100}))
    assert quota.record("alice", "app", 1000, 0) == 0
    assert quota.record("bob", "job", 1000, 0) == 0
    assert quota.record("bob", "app", 100, 0) == 1000


def test_a_changed_limit_counts_at_once() -> None:
    quota = ClientQuota(WINDOW)
    quota.set_limits(QuotaLimits({("alice", None): 100}))
    assert quota.record("alice", "app", 2000, 0) == 10_000
    quota.set_limits(QuotaLimits({("alice", None): 200}))
    assert quota.record("alice", "app", 0, 0) == 0
    quota.set_limits(QuotaLimits({("alice", None): 50}))
    assert quota.record("alice", "app", 0, 0) == 30_000, "what was used before still counts"
    quota.set_limits(QuotaLimits({}))
    assert quota.record("alice", "app", 10**9, 0) == 0
    assert not list(quota), "no metric shows it any longer"


def test_a_request_quota_has_nobody_wait_longer_than_a_window() -> None:
    quota = ClientQuota(WINDOW, longest_ms=1000)
    quota.set_limits(QuotaLimits({("alice", None): 1}))
    assert quota.record("alice", "app", 10**6, 0) == 1000


def test_a_limit_of_zero_has_everybody_wait_the_whole_time() -> None:
    quota = ClientQuota(WINDOW)
    quota.set_limits(QuotaLimits({("alice", None): 0}))
    assert quota.record("alice", "app", 1, 0) == 11_000


def test_clients_that_call_themselves_anything_are_forgotten() -> None:
    quota = ClientQuota(WINDOW)
    quota.set_limits(QuotaLimits({(None, DEFAULT): 1}))
    for number in range(3 * MOST_REMEMBERED_CLIENTS):
        assert quota.record("alice", str(number), 10, number * 100) == 0
        assert quota.record("alice", "hog", 10, number * 100) or not number
    assert len(list(quota)) <= MOST_REMEMBERED_CLIENTS


def test_a_strict_quota_refuses_what_is_too_much_and_counts_it_not() -> None:
    quota = MutationQuota(WINDOW)
    quota.set_limits(QuotaLimits({("alice", None): 2}))
    assert quota.record("alice", "app", 25, 0, is_strict=True) == 0, "as long as it is not exceeded, any number is"
    assert quota.record("alice", "app", 1, 0, is_strict=True) == 1500
    assert quota.record("alice", "app", 1, 1499, is_strict=True) == 1
    assert quota.record("alice", "app", 1, 1500, is_strict=True) == 0
    assert quota.record("bob", "app", 100, 0, is_strict=True) == 0


def test_a_quota_that_is_not_strict_takes_all() -> None:
    quota = MutationQuota(WINDOW)
    quota.set_limits(QuotaLimits({("alice", None): 2}))
    assert quota.record("alice", "app", 25, 0, is_strict=False) == 1500
    assert quota.record("alice", "app", 1, 0, is_strict=False) == 2000


@given(
    st.one_of(
        st.builds(QuotaEntity, st.one_of(st.none(), st.just(DEFAULT), st.text(min_size=1)),
                  st.one_of(st.just(DEFAULT), st.text(min_size=1))),
        st.builds(QuotaEntity, st.one_of(st.just(DEFAULT), st.text(min_size=1))),
        st.builds(QuotaEntity, st.none(), st.none(), st.one_of(st.just(DEFAULT), st.just("10.0.0.1"))),
    )
)  # fmt: skip
def test_entities_are_found_again_in_the_tree(entity: QuotaEntity) -> None:
    assert QuotaEntity.of(entity.resource) == entity
    assert entity_of(entity.parts()) == entity


@pytest.mark.parametrize("path", ["a/b", "a/clients", "a/clients/", "a/clients/b/c", "a/topics/b"])
def test_other_paths_are_no_entities(path: str) -> None:
    assert QuotaEntity.of((EntityType.USER, path)) is None
    assert QuotaEntity.of((2, "topic")) is None
