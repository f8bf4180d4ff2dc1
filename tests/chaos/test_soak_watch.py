"""The floods that a seed draws in scripts/soak, and the unexplained waits; needs no cluster."""

from __future__ import annotations

import random
from itertools import islice

import pytest

from tests.chaos.soak.hostile import KINDS, HostileClient, Orders, draw
from tests.chaos.soak.watch import FaultTime, FaultTimes, Gap
from tests.kit.network.namespaces import CLIENT, ZOOKEEPER

BROKERS = ["one:1", "two:2", "three:3"]
SECURED = ["one:11", "two:12", "three:13"]


def drawn(seed: int, secured: list[str], count: int = 200) -> list[tuple[str, str]]:
    """The first floods of a seed: (name, address)."""
    chance = random.Random(seed)
    floods = draw(HostileClient(chance), Orders(BROKERS, secured, seed), chance)
    return [(name, target) for name, target, _ in islice(floods, count)]


@pytest.mark.parametrize("secured", [[], SECURED], ids=["plain", "secured"])
def test_a_seed_draws_ten_kinds_of_floods_and_the_same_ones_again(secured: list[str]) -> None:
    found = drawn(1, secured)
    assert found == drawn(1, secured) != drawn(2, secured)
    assert len({name for name, _ in found}) == KINDS
    assert {target for _, target in found} == {*BROKERS, *secured}


def test_floods_of_tls_are_for_listeners_with_tls() -> None:
    targets = {
        target for name, target in drawn(1, SECURED) if name in HostileClient(random.Random()).floods_of_secured()
    }
    assert targets == set(SECURED)


@pytest.mark.parametrize(
    ("gap", "explained"),
    [
        (Gap(1, 9.0, 10.5), True),
        (Gap(1, 11.9, 15.0), True),
        (Gap(1, 12.1, 15.0), False),
        (Gap(2, 9.0, 15.0), False),
        (Gap(2, 24.0, 40.0), True),
        (Gap(1, 20.0, 25.0), False),
        (Gap(3, 61.0, 62.0), True),
    ],
)
def test_a_wait_is_explained_by_a_fault_of_that_broker_alone(gap: Gap, explained: bool) -> None:
    times = FaultTimes(
        [
            FaultTime(frozenset({"broker 1"}), 10.0, 12.0),
            FaultTime(frozenset({f"cut 2-{CLIENT}"}), 20.0, 25.0),
            FaultTime(frozenset({"broker 3"}), 60.0),
            FaultTime(frozenset({"ZooKeeper", "cut 1-2", f"cut 1-{ZOOKEEPER}"}), 0.0),
        ]
    )
    assert times.explain(gap) is explained
