"""Moves of replicas between the log directories of a broker (KIP-113): starts them and shows their progress."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from client import admin
from client.kafka_client import KafkaClient
from client.replica_admin import alter_replica_log_dirs
from protocol.errors import ErrorCode
from protocol.topic_partition import TopicPartition
from tools.reassignment.reassignment_file import Replica
from tools.support.common import ToolError

_PAUSE_S: Final = 0.1


class TerseError(ToolError):
    """A failure that is shown only by its message (Kafka class `TerseException`)."""


class Whereabouts(NamedTuple):
    """The current directory of a replica, and the one it is moving to; each may be None."""

    current: str | None = None
    future: str | None = None


async def whereabouts(client: KafkaClient, replicas: Iterable[Replica]) -> dict[Replica, Whereabouts]:
    """The directories of each replica. Raises ApiError."""
    wanted = dict.fromkeys(replicas, Whereabouts())
    for broker_id in sorted({each.broker_id for each in wanted}):
        for directory in await admin.describe_log_dirs(client, broker_id):
            for topic in directory.topics:
                for each in topic.partitions:
                    replica = Replica(broker_id, topic.name, each.partition_index)
                    if replica not in wanted:
                        continue
                    changed = {"future" if each.is_future_key else "current": directory.log_dir}
                    wanted[replica] = wanted[replica]._replace(**changed)
    return wanted


def is_done(found: Whereabouts) -> bool:
    """Whether the replica has a directory and is not moving. It need not be the intended directory."""
    return found.current is not None and found.future is None


def state_text(replica: Replica, target: str, found: Whereabouts) -> str:
    """The line of `--verify` about a replica that was to move to `target`."""
    partition, broker = replica.topic_partition, replica.broker_id
    if found.current is None:
        return (
            f"Partition {partition} is not found in any live log dir on broker {broker}. There is likely an offline "
            "log directory on the broker."
        )
    if found.future == target:
        return f"Reassignment of replica {replica} is still in progress."
    if found.future is not None:
        return f"Partition {partition} on broker {broker} is being moved to log dir {found.future} instead of {target}."
    if found.current == target:
        return f"Reassignment of replica {replica} completed successfully."
    return f"Partition {partition} on broker {broker} is not being moved from log dir {found.current} to {target}."


async def start_moves(client: KafkaClient, targets: Mapping[Replica, str], timeout_ms: int) -> None:
    """Start to move replicas, and print a line for each. Retries while a broker does not have its replica yet.

    Raises TerseError after `timeout_ms`, ToolError for a replica that cannot move.
    """
    pending = dict(targets)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_ms / 1000
    while True:
        for replica in sorted(await _begin(client, pending)):
            print(
                f"Successfully started moving log directory to {pending.pop(replica)} for replica "
                f"{replica.topic_partition} with broker {replica.broker_id} ",
                flush=True,
            )
        if not pending:
            return
        if loop.time() >= deadline:
            raise TerseError(
                f"Timed out before log directory move{'' if len(pending) == 1 else 's'} could be started for: "
                f"{','.join(map(str, sorted(pending)))}"
            )
        await asyncio.sleep(_PAUSE_S)


async def _begin(client: KafkaClient, targets: Mapping[Replica, str]) -> list[Replica]:
    """Start moves, and return the replicas whose moves have started. Raises ToolError."""
    by_broker: dict[int, dict[TopicPartition, str]] = defaultdict(dict)
    for replica, path in targets.items():
        by_broker[replica.broker_id][replica.topic_partition] = path
    begun: list[Replica] = []
    for broker_id, paths in by_broker.items():
        for partition, refusal in (await alter_replica_log_dirs(client, broker_id, paths)).items():
            replica = Replica(broker_id, *partition)
            if refusal is None:
                begun.append(replica)
            elif refusal.error_code is not ErrorCode.REPLICA_NOT_AVAILABLE:
                raise ToolError(f"Failed to alter dir for {replica}") from refusal
    return begun
