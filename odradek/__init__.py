"""Odradek, a Kafka-compatible broker: the package that user programs may import.

    with odradek.Broker() as broker:
        start_app(broker.bootstrap_servers)

The broker's own packages (`broker`, `storage`, `protocol`, ...) have names that are too generic for site-packages. In a
checkout they are next to this package. A wheel has them in `odradek/_server/`, and only the processes that this package
starts put that on their `sys.path`. User programs never import them: they run brokers as processes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from odradek.brokers import Broker
    from odradek.clusters import Cluster
    from odradek.control import ExpectationError, KafkaError, OdradekError, Record
    from odradek.kafka_under_test import Fault, Topic
    from odradek.processes import Snapshot

__version__ = "0.1.0"
__all__ = [
    "Broker",
    "Cluster",
    "ExpectationError",
    "Fault",
    "KafkaError",
    "OdradekError",
    "Record",
    "Snapshot",
    "Topic",
]

_MODULES = {
    "Broker": "brokers",
    "Cluster": "clusters",
    "ExpectationError": "control",
    "Fault": "kafka_under_test",
    "KafkaError": "control",
    "OdradekError": "control",
    "Record": "control",
    "Snapshot": "processes",
    "Topic": "kafka_under_test",
}


def __getattr__(name: str) -> Any:
    """Load the module of a public name on its first use (PEP 562)."""
    if name not in _MODULES:
        raise AttributeError(f"module 'odradek' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"odradek.{_MODULES[name]}"), name)
