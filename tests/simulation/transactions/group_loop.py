"""The loop as a group of several instances (KIP-447): each has a transactional id of its own, and commits offsets of
what the group has assigned to it, as a member of a generation.
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING

from client.consumer import Consumer
from client.kafka_client import KafkaClient
from tests.simulation.clients import Listener
from tests.simulation.transactions.session import FencedError
from tests.simulation.transactions.transactions_plan import GROUP
from tests.simulation.transactions.work import Work

if TYPE_CHECKING:
    from tests.simulation.transactions.workload import Workload

_LONGEST_POLL_MS = 20_000


async def be_instance(
    workload: Workload, transactional_id: str, client: KafkaClient, reader: str, *, is_twin: bool = False
) -> None:
    """Be a member of the loop, for ever. A twin has the transactional id of another one, and soon leaves."""
    clients = workload.clients
    rng = Random(f"{clients.world.seed} {reader}")
    left = rng.randint(1, 4) if is_twin else -1
    while left and not (is_twin and clients.is_over):
        work = Work(workload, client, transactional_id, reader)
        consumer = _consumer(workload, client)
        topics = [workload.plan.inputs.name]
        consumer.subscribe(topics, Listener(clients, consumer, reader, GROUP))
        try:
            await work.begin()
            while left and not (is_twin and clients.is_over):
                left -= 1
                if not await workload.transform(work, consumer, reader, rng):
                    await workload.seek(work, consumer, reader)
        except FencedError as error:
            clients.world.trace.note(reader, f"is fenced: {error}")
            if is_twin:
                return
            await asyncio.sleep(rng.random() * 3)
        finally:
            await consumer.close()
            await work.session.close()


def _consumer(workload: Workload, client: KafkaClient) -> Consumer:
    plan = workload.plan
    settings = {
        **workload.loop_settings,
        "group.id": GROUP,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": "false",
        "session.timeout.ms": str(plan.loop_session_timeout_ms),
        "heartbeat.interval.ms": str(plan.loop_session_timeout_ms // 4),
        "max.poll.interval.ms": str(_LONGEST_POLL_MS),
        "partition.assignment.strategy": plan.loop_assignor,
    }
    return Consumer(client, workload.clients.consumer_settings(settings))
