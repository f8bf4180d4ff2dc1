"""Several brokers and a ZooKeeper, real or embedded, as processes to kill, to pause and to restart on their data."""

from __future__ import annotations

import contextlib
import functools
import re
import signal
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import ClusterMetadata, PartitionMetadata

from tests.kit.broker_process import LOOPBACK, BrokerProcess
from tests.kit.controller.reassigning import metadata_of
from tests.kit.network.namespaces import ZOOKEEPER, NetworkNamespaces
from tests.kit.waiting import eventually
from tests.kit.zookeeper import new_zookeeper, start_zookeeper
from tests.kit.zookeeper_process import ZookeeperProcess

SESSION_TIMEOUT_MS = 4_000


class BrokerCluster:
    """Brokers 1, 2, ... on one ZooKeeper. A context manager that starts and stops all of them."""

    def __init__(
        self,
        directory: Path,
        brokers: int = 3,
        settings: Mapping[str, str] | None = None,
        own_settings: Mapping[int, Mapping[str, str]] = MappingProxyType({}),
        new_server: Callable[[Path], ZookeeperProcess] = new_zookeeper,
        network: NetworkNamespaces | None = None,
        ensemble: Sequence[ZookeeperProcess] = (),
    ) -> None:
        """On loopback, or on the hosts of a `network`. Starts a ZooKeeper unless `ensemble` names a running one.
        `settings` apply to all brokers, `own_settings` to single ones.
        """
        self._ensemble = ensemble
        if network is not None:
            new_server = functools.partial(new_server, host=network.host(ZOOKEEPER).ip)
        self.zookeeper = new_server(directory / "zookeeper")
        addresses = [each.address for each in ensemble or [self.zookeeper]]
        self.brokers = {
            number: BrokerProcess(
                directory / f"broker-{number}",
                {
                    "broker.id": str(number),
                    "zookeeper.connect": ",".join(addresses),
                    "zookeeper.session.timeout.ms": str(SESSION_TIMEOUT_MS),
                    "offsets.topic.replication.factor": str(brokers),
                    "offsets.topic.num.partitions": "4",
                    "transaction.state.log.replication.factor": str(brokers),
                    "transaction.state.log.min.isr": str(min(brokers, 2)),
                    "transaction.state.log.num.partitions": "4",
                    "default.replication.factor": str(brokers),
                    "controlled.shutdown.retry.backoff.ms": "500",
                    **(settings or {}),
                    **own_settings.get(number, {}),
                },
                host=LOOPBACK if network is None else network.host(number),
            )
            for number in range(1, brokers + 1)
        }
        self.address = ",".join(broker.address for broker in self.brokers.values())

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            stack.callback(self.stop)
            if not self._ensemble:
                start_zookeeper(self.zookeeper)
            for broker in self.brokers.values():
                broker.start()
            self.await_brokers(set(self.brokers))
            stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop all brokers in order, then ZooKeeper; stopped brokers are skipped."""
        for broker in self.brokers.values():
            broker.stop()
        self.zookeeper.stop()

    # -- what the brokers say ------------------------------------------------------------------------------------------

    def metadata(self, broker: int | None = None) -> ClusterMetadata:
        """The cluster's metadata from any of its brokers, or from this one. Raises KafkaException if none answers."""
        address = self.address if broker is None else self.brokers[broker].address
        return metadata_of(address)

    def partition(self, topic: str, partition: int) -> PartitionMetadata:
        """One partition's metadata. Raises KafkaException and KeyError while it is unknown."""
        return self.metadata().topics[topic].partitions[partition]

    def leader(self, topic: str, partition: int) -> int:
        """The leader of a partition; waits until it has one."""
        return eventually(
            f"a leader of {topic}-{partition}",
            lambda: self.partition(topic, partition).leader,
            lambda leader: leader in self.brokers,
            not_yet=(KafkaException, KeyError),
        )

    def controller(self) -> int:
        """The controller; waits until the cluster has one."""
        return eventually(
            "a controller",
            lambda: self.metadata().controller_id,
            lambda controller: controller in self.brokers,
            not_yet=(KafkaException,),
        )

    def await_brokers(self, wanted: set[int]) -> None:
        """Wait until exactly these brokers are registered, one of them is the controller, and each knows all of this.

        A broker that was cut off or paused reports its old metadata until the controller updates it.
        """

        def seen() -> list[tuple[set[int], int]]:
            told = [self.metadata(number) for number in sorted(wanted)]
            return [(set(metadata.brokers), metadata.controller_id) for metadata in told]

        eventually(
            f"brokers {sorted(wanted)}",
            seen,
            lambda found: found[0][1] in wanted and found == [(wanted, found[0][1])] * len(wanted),
            not_yet=(KafkaException,),
        )

    def await_whole(self) -> None:
        """Wait until all brokers are registered; starts those that are not running."""
        for broker in self.brokers.values():
            if not broker.is_running:
                broker.start()
        self.await_brokers(set(self.brokers))

    def await_full_isr(self, topic: str) -> None:
        """Wait until every replica of the topic is in sync again, and all brokers report that, and the same leaders."""

        def seen() -> dict[int, set[tuple[int, frozenset[int]]]]:
            """By partition: the leader, and the replicas out of sync, as each broker reports them."""
            found = defaultdict(set)
            for told_by in self.brokers:
                for number, each in self.metadata(told_by).topics[topic].partitions.items():
                    found[number].add((each.leader, frozenset(each.replicas) - frozenset(each.isrs)))
            return found

        eventually(
            f"all replicas of {topic} in sync",
            seen,
            lambda found: all(len(told) == 1 and min(told)[0] >= 0 and not min(told)[1] for told in found.values()),
            not_yet=(KafkaException, KeyError),
        )

    def logs_of(self, topic: str, partition: int) -> dict[int, bytes]:
        """The bytes of a partition's log on each broker. The brokers must not write meanwhile."""
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
        """SIGSTOP for the duration of a block, then SIGCONT."""
        self.brokers[number].send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.brokers[number].send_signal(signal.SIGCONT)

    def session_count(self, number: int) -> int:
        """The number of ZooKeeper sessions that a broker has begun, according to its output."""
        return len(re.findall(r"Connected to ZooKeeper at \S+, session", self.brokers[number].output.read_text()))

    def traceback(self) -> str | None:
        """The first traceback in the output of a broker, with the lines around it."""
        for broker in self.brokers.values():
            said = broker.output.read_text()
            if "Traceback" in said:
                at = said.index("Traceback")
                return f"{broker.output}: {said[max(0, at - 500) : at + 3500]}"
        return None
