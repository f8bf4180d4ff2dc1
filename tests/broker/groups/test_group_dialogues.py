"""Our coordinator's answers equal those of Apache Kafka 3.9.1, word for word; see group_dialogues."""

from __future__ import annotations

import json

import pytest

from tests.broker.groups.group_dialogues import DIALOGUES, RECORDED
from tests.broker.groups.group_fixture import GroupFixture
from tests.broker.groups.local_place import Local
from tests.parity.transcript import differences

KAFKA = json.loads(RECORDED.read_text())


@pytest.mark.parametrize("name", sorted(DIALOGUES))
def test_answers_as_kafka(name: str) -> None:
    place = Local()
    fixture = GroupFixture(place, name)
    try:
        DIALOGUES[name](fixture)
    finally:
        place.close()
    assert [label for label, _ in fixture.transcript] == [label for label, _ in KAFKA[name]]
    different = [
        f"{index} {label} {path}: Kafka {theirs}, ours {mine}"
        for index, ((label, kafka), (_, ours)) in enumerate(zip(KAFKA[name], fixture.transcript, strict=True))
        for path, theirs, mine in differences(kafka, json.loads(json.dumps(ours)))
        if not (path.endswith("error_message") and theirs and mine)  # error texts are our own
    ]
    assert not different, "\n".join(different)
