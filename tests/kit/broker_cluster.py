"""Several brokers and a real ZooKeeper as processes, to kill, to pause and to start again on their data."""

from __future__ import annotations

import contextlib
import re
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ClusterMetadata, PartitionMetadata

from tests.kit.broker_process import BrokerProcess
from tests.kit.waiting import eventually
from tests.kit.zookeeper import new_zookeeper, start_zookeeper

SESSION_TIMEOUT_MS = 4_000


class BrokerCluster:
    """Brokers 1, 2, ... on one ZooKeeper. A context manager that starts and stops all of them."""

    def __init__(self, directory: Path, brokers: int = 3, settings: Mapping[str, str] | None = None) -> None:
        self.zookeeper = new_zookeeper(directory / "zookeeper")
        self.brokers = {
            number: BrokerProcess(
                directory / f"broker-{number}",
                {
                    "broker.id": str(number),
                    "zookeeper.connect": self.zookeeper.address,
                    "zookeeper.session.timeout.ms": str(SESSION_TIMEOUT_MS),
                    "offsets.topic.replication.factor": str(brokers),
                    "offsets.topic.num.partitions": "4",
                    "default.replication.factor": str(brokers),
                    "controlled.shutdown.retry.backoff.ms": "500",
                    **(settings or {}),
                },
            )
            for number in range(1, brokers + 1)
        }
        self.address = ",".join(broker.address for broker in self.brokers.values())

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            stack.callback(self.stop)
            start_zookeeper(self.zookeeper)
            for broker in self.brokers.values():
                broker.start()
            for number in self.brokers:
                self.await_brokers(set(self.brokers), told_by=number)
            stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop all brokers in order, then ZooKeeper; those that do not run are left as they are."""
        for broker in self.brokers.values():
            broker.stop()
        self.zookeeper.stop()

    # -- what the brokers say ------------------------------------------------------------------------------------------

    def metadata(self, broker: int | None = None) -> ClusterMetadata:
        """The cluster as one of its brokers describes it, or this one. Raises KafkaException while none answers."""
        address = self.address if broker is None else self.brokers[broker].address
        # A connection to a broker that is paused is given up soon, and another one asked.
        settings = {"log_level": 0, "reconnect.backoff.max.ms": 200, "socket.timeout.ms": 2_000}
        return AdminClient({"bootstrap.servers": address, **settings}).list_topics(timeout=5)

    def partition(self, topic: str, partition: int) -> PartitionMetadata:
        """One partition. Raises KafkaException and KeyError while it is not known."""
        return self.metadata().topics[topic].partitions[partition]

    def leader(self, topic: str, partition: int) -> int:
        """The broker that leads a partition, once there is one."""
        return eventually(
            f"a leader of {topic}-{partition}",
            lambda: self.partition(topic, partition).leader,
            lambda leader: leader in self.brokers,
            not_yet=(KafkaException, KeyError),
        )

    def controller(self) -> int:
        """The broker that is the controller, once there is one."""
        return eventually(
            "a controller",
            lambda: self.metadata().controller_id,
            lambda controller: controller in self.brokers,
            not_yet=(KafkaException,),
        )

    def await_brokers(self, wanted: set[int], *, told_by: int | None = None) -> None:
        """Until exactly these are registered, one of them as the controller. So says any broker, or `told_by`."""

        def seen() -> tuple[set[int], int]:
            metadata = self.metadata(told_by)
            return set(metadata.brokers), metadata.controller_id

        eventually(
            f"brokers {sorted(wanted)}",
            seen,
            lambda found: found[0] == wanted and found[1] in wanted,
            not_yet=(KafkaException,),
        )

    def await_full_isr(self, topic: str) -> None:
        """Until every replica of the topic is in sync again."""

        def out_of_sync() -> dict[int, list[int]]:
            partitions = self.metadata().topics[topic].partitions
            return {
                number: sorted(set(each.replicas) - set(each.isrs))
                for number, each in partitions.items()
                if set(each.replicas) != set(each.isrs) or each.leader < 0
            }

        eventually(
            f"all replicas of {topic} in sync", out_of_sync, lambda found: not found, not_yet=(KafkaException, KeyError)
        )

    def logs_of(self, topic: str, partition: int) -> dict[int, bytes]:
        """The bytes of a partition's log on each broker. For brokers that do not write."""
        return {
            number: b"".join(
                path.read_bytes()
                for path in sorted((broker.output.parent / "data" / f"{topic}-{partition}").glob("*.log"))
            )
            for number, broker in self.brokers.items()
        }

    # -- faults --------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def paused(self, number: int) -> Iterator[None]:
        """SIGSTOP for a block, then SIGCONT."""
        self.brokers[number].send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.brokers[number].send_signal(signal.SIGCONT)

    def session_count(self, number: int) -> int:
        """The sessions with ZooKeeper that a broker has begun, as its output tells."""
        return len(re.findall(r"Connected to ZooKeeper at \S+, session", self.brokers[number].output.read_text()))

    def traceback(self) -> str | None:
        """The first traceback in the output of a broker, with what is before and behind it."""
        for broker in self.brokers.values():
            said = broker.output.read_text()
            if "Traceback" in said:
                at = said.index("Traceback")
                return f"{broker.output}: {said[max(0, at - 500) : at + 3500]}"
        return None
