"""Every scenario, played to Apache Kafka and to this broker: the answers are the same but for `known_differences`."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.parity.known_differences import known_differences, known_for
from tests.parity.subject import Target, play, scenarios
from tests.parity.transcript import differences

pytestmark = pytest.mark.java


@pytest.fixture(scope="module")
def players() -> ThreadPoolExecutor:
    """Both brokers are asked at the same time."""
    return ThreadPoolExecutor(2)


@pytest.mark.parametrize("name", list(scenarios()))
def test_answers_are_those_of_apache_kafka(
    name: str, apache_kafka: Target, odradek: Target, players: ThreadPoolExecutor
) -> None:
    theirs, ours = (players.submit(play, name, target) for target in (apache_kafka, odradek))
    expected, actual = theirs.result(), ours.result()
    known = known_for(name)
    found = list(differences(expected, actual))
    unlisted = [each for each in found if not any(entry.covers(each[0]) for entry in known)]
    report = "\n".join(
        f"{path}\n    Kafka: {json.dumps(kafka)}\n    ours:  {json.dumps(mine)}" for path, kafka, mine in unlisted
    )
    assert not unlisted, f"{len(unlisted)} differences from Apache Kafka in {name}:\n{report}"
    stale = [entry for entry in known if not any(entry.covers(path) for path, _, _ in found)]
    assert not stale, f"no longer different, so no longer to be listed: {stale}"


def test_there_are_enough_scenarios() -> None:
    assert len(scenarios()) >= 150


def test_every_known_difference_belongs_to_a_scenario() -> None:
    names = list(scenarios())
    lost = [entry for entry in known_differences() if not any(entry in known_for(name) for name in names)]
    assert not lost
