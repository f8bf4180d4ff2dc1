"""The consumer of a loop that is a group of several instances (KIP-447). Each instance has a transactional id, and
commits offsets of its assigned partitions as a member of a generation.
"""

from __future__ import annotations

from collections.abc import Mapping

from client.consumer import Consumer
from client.kafka_client import KafkaClient
from tests.simulation.clients import Clients, Listener
from tests.simulation.plan import TransactionsPlan
from tests.simulation.transactions.transactions_plan import GROUP

_LONGEST_POLL_MS = 20_000


def group_consumer(
    clients: Clients, plan: TransactionsPlan, client: KafkaClient, reader: str, loop_settings: Mapping[str, str]
) -> Consumer:
    """A new member of the group, which gets partitions as it polls."""
    settings = {
        **loop_settings,
        "group.id": GROUP,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": "false",
        "session.timeout.ms": str(plan.loop_session_timeout_ms),
        "heartbeat.interval.ms": str(plan.loop_session_timeout_ms // 4),
        "max.poll.interval.ms": str(_LONGEST_POLL_MS),
        "partition.assignment.strategy": plan.loop_assignor,
    }
    consumer = Consumer(client, clients.consumer_settings(settings))
    consumer.subscribe([plan.inputs.name], Listener(clients, consumer, reader, GROUP))
    return consumer
