"""Every scenario, played to Apache Kafka and to this broker: the answers are equal except for `known_differences`."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.parity.cluster.subject import cluster_scenarios, stopped_scenarios
from tests.parity.known_differences import known_differences, known_for, report
from tests.parity.secured.subject import secured_scenarios
from tests.parity.security.gssapi import gssapi_scenarios
from tests.parity.security.subject import sasl_scenarios
from tests.parity.subject import Target, play, scenarios

pytestmark = pytest.mark.java


@pytest.fixture(scope="module")
def players() -> ThreadPoolExecutor:
    """Both brokers are used at the same time."""
    return ThreadPoolExecutor(2)


@pytest.mark.parametrize("name", list(scenarios()))
def test_answers_are_those_of_apache_kafka(
    name: str, apache_kafka: Target, odradek: Target, players: ThreadPoolExecutor
) -> None:
    theirs, ours = (players.submit(play, name, target) for target in (apache_kafka, odradek))
    assert not (said := report(name, theirs.result(), ours.result())), said


def test_there_are_enough_scenarios() -> None:
    assert len(scenarios()) >= 820


def test_every_known_difference_belongs_to_a_scenario() -> None:
    names = [*scenarios(), *cluster_scenarios(), *stopped_scenarios()]
    names += [*sasl_scenarios(), *gssapi_scenarios(), *secured_scenarios()]
    known = {entry for name in names for entry in known_for(name)}
    assert not [entry for entry in known_differences() if entry not in known]
