"""The cost of a start, measured in imported modules: a time would depend on the machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.broker_process import BrokerProcess

PACKAGES = {"broker", "cluster", "config", "environment", "protocol", "storage", "zookeeper"}
MOST_MODULES = 345
"""Modules of this project. Each costs half a millisecond, whatever its size; together they are half of a start."""
MOST_OTHER_MODULES = 190
"""Modules of Python and of packages: most belong to asyncio and uvloop, some to the environment."""
AVOIDED = {
    "argparse": "a broker's command line is read by hand",
    "broker.observability.metrics": "for the endpoint of the metrics alone",
    "cluster.groups.shard": "for a broker that coordinates groups",
    "cluster.transactions.transaction_shard": "for a broker that coordinates transactions",
    "crc32c": "imports a command line and a parser of e-mails; see protocol.records.checksum",
    "dataclasses": "each takes up to a millisecond to define; see protocol.value",
    "email": "comes with importlib.metadata and http",
    "http": "the endpoint of the metrics is imported when it is configured",
    "importlib.metadata": "nothing here asks for versions",
    "kazoo": "for a real ensemble alone",
    "multiprocessing": "the cleaner's processes are started without it",
    "prometheus_client": "for the endpoint of the metrics alone",
    "tempfile": "for --dev alone",
    "zstandard": "codecs are imported when a batch needs them",
}


def test_a_start_imports_what_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPROFILEIMPORTTIME", "1")
    broker = BrokerProcess(tmp_path)
    broker.start()
    broker.stop()
    lines = broker.output.read_text().splitlines()
    imported = {line.rpartition("|")[2].strip() for line in lines if line.startswith("import time:")}
    own = {name for name in imported if name.partition(".")[0] in PACKAGES}
    assert "broker.server" in own
    assert len(own) <= MOST_MODULES
    assert len(imported - own) <= MOST_OTHER_MODULES, sorted(imported - own)
    assert {name: AVOIDED[name] for name in AVOIDED.keys() & imported} == {}
