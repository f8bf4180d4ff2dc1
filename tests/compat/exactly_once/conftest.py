"""A separate broker for each test, which kills it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.broker_process import BrokerProcess

SETTINGS = {
    "num.partitions": "2",
    # Abort the transactions of killed programs soon, and compact changelogs during the test.
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    "log.cleaner.backoff.ms": "500",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """If the broker logs a bug, the test fails at the end."""
    process = BrokerProcess(tmp_path / "broker", SETTINGS)
    process.start()
    yield process
    assert process.stop() == 0
    said = process.output.read_text()
    assert "Traceback" not in said, said[said.index("Traceback") - 500 :][:4000]
