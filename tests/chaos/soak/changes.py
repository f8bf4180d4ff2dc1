"""An administrator of a cluster under faults: elects leaders, moves replicas, creates and deletes topics."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from tests.compat.steady_load import PARTITIONS
from tests.kit.broker_cluster import BrokerCluster
from tests.kit.controller.reassigning import elect_preferred, reassign
from tests.kit.wire_client import ConnectionClosed

PATIENCE_S = 5.0
PAUSE_S = 4.0
REFUSALS = (AssertionError, KafkaException, KeyError, OSError, ConnectionClosed)
"""An administrator of a cluster under faults sometimes gets refusals, or no answer."""


class Administrator(threading.Thread):
    """Asks for a change every few seconds. `moved` are topics to move, with their replication factor."""

    def __init__(self, cluster: BrokerCluster, moved: dict[str, int], seed: int) -> None:
        super().__init__(daemon=True)
        self.changes = 0
        """The changes that the cluster applied."""
        self.refused = 0
        self._cluster = cluster
        self._moved = moved
        self._random = random.Random(seed)
        self._numbers = itertools.count()
        self._topics: list[str] = []
        self._stopping = threading.Event()

    def run(self) -> None:
        changes: list[Callable[[], None]] = [self._elect, self._move, self._create_topic, self._delete_topic]
        while not self._stopping.wait(self._random.uniform(0, 2 * PAUSE_S)):
            try:
                self._random.choice(changes)()
            except REFUSALS:
                self.refused += 1
            else:
                self.changes += 1

    def stop(self) -> None:
        """No more changes."""
        self._stopping.set()
        self.join()

    def _elect(self) -> None:
        elect_preferred(self._cluster.address, PATIENCE_S)

    def _move(self) -> None:
        topic = self._random.choice(list(self._moved))
        replicas = self._random.sample(list(self._cluster.brokers), self._moved[topic])
        reassign(self._cluster.address, {(topic, self._random.randrange(PARTITIONS)): replicas}, PATIENCE_S)

    def _admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self._cluster.address, "log_level": 0})

    def _create_topic(self) -> None:
        name = f"beside-{next(self._numbers)}"
        self._topics.append(name)
        admin = self._admin()
        created = admin.create_topics([NewTopic(name, 4, 3)], operation_timeout=PATIENCE_S, request_timeout=10)
        created[name].result(2 * PATIENCE_S)

    def _delete_topic(self) -> None:
        if not self._topics:
            self._create_topic()
            return
        name = self._topics.pop(0)
        admin = self._admin()
        deleted = admin.delete_topics([name], operation_timeout=PATIENCE_S, request_timeout=10)
        deleted[name].result(2 * PATIENCE_S)
