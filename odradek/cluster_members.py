"""The processes of one cluster: its ZooKeeper tree, and its brokers."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NoReturn

from odradek.brokers import DEFAULTS, Begun, Broker, State
from odradek.cluster_state import View
from odradek.control import Control, OdradekError
from odradek.network_plan import TREE, NetworkPlan, Node
from odradek.processes import Launcher, Snapshot
from odradek.security_options import INTERNAL, Security

SHORTER: Mapping[str, str] = {
    "replica.lag.time.max.ms": "5000",
    "replica.fetch.backoff.ms": "100",
    "controlled.shutdown.retry.backoff.ms": "100",
}
"""Where brokers of a cluster for tests wait less than Kafka's. zookeeper.session.timeout.ms stays: see `tree_host`."""


def defaults(brokers: int) -> dict[str, str]:
    """The configuration of each of so many brokers; the keys of `config` win."""
    replicas = str(min(3, brokers))
    return {
        **DEFAULTS,
        **SHORTER,
        "default.replication.factor": replicas,
        "offsets.topic.replication.factor": replicas,
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": str(min(2, brokers)),
    }


class Member(Broker):
    """A broker of a cluster, which ends with the cluster."""

    def __init__(
        self,
        broker_id: int,
        members: ClusterMembers,
        tree_port: int,
        config: Mapping[str, object],
        security: Security,
    ) -> None:
        own = {"broker.id": broker_id, "zookeeper.connect": f"127.0.0.1:{tree_port}"}
        super().__init__(config={**config, **own})
        self._security = security
        self.broker_id = broker_id
        self.tree_port = tree_port
        self._members = members
        self._begun: Begun | None = None

    def __repr__(self) -> str:
        return f"broker {self.broker_id}"

    def begin(self, launcher: Launcher, snapshot: Snapshot | None = None) -> None:
        """Have the process started; `await_started` waits for it."""
        self._launcher = launcher
        self._begun = self._begin(snapshot=snapshot)

    def await_started(self) -> None:
        """Wait until the broker serves. Raises OdradekError with the reason of a failed start."""
        if self._begun is not None:
            begun, self._begun = self._begun, None
            self._process = self._started(begun)

    def discard(self) -> None:
        """End the process, and delete its data."""
        with contextlib.suppress(OdradekError):  # it has failed, and ended
            self.await_started()
        super().stop()
        self._state = State.ENDED

    @property
    def port(self) -> int:
        """The port for other brokers; 0 before the start."""
        return 0 if self._process is None else self._process.ports.get(INTERNAL, self._process.port)

    def view(self) -> View:
        """The cluster as this broker sees it, with the internal topics."""
        topics = self._control.ask("GET", "topics", internal="true")["topics"]
        return View(self._ask("GET", "broker"), topics)

    def kill(self) -> None:
        super().kill()
        self._members.end_session(self.broker_id)

    def shut_down(self) -> None:
        super().shut_down()
        self._members.end_session(self.broker_id)  # the tree did not answer a broker that was cut off from it

    def pause(self) -> None:
        super().pause()
        self._members.watch_sessions()

    def resume(self) -> None:
        super().resume()
        self._members.apply_network()

    def start(self) -> NoReturn:
        raise OdradekError(f"{self!r} belongs to a cluster: restart it")

    def stop(self) -> NoReturn:
        raise OdradekError(f"{self!r} belongs to a cluster: shut it down or kill it, or stop the cluster")

    def reset(self) -> NoReturn:
        raise OdradekError(f"{self!r} belongs to a cluster: reset the cluster")

    def prepare_reset(self) -> NoReturn:
        raise OdradekError(f"{self!r} belongs to a cluster: prepare the reset of the cluster")

    def snapshot(self) -> NoReturn:
        raise OdradekError(f"{self!r} belongs to a cluster: take a snapshot of the cluster")

    def restore(self, snapshot: Snapshot) -> NoReturn:  # noqa: ARG002 - the signature of a broker's
        raise OdradekError(f"{self!r} belongs to a cluster: restore the cluster")

    def change_network(self) -> None:
        """Send the faults of the connections that this broker opens."""
        self._ask("POST", "network", {"links": self._members.links(self.broker_id)})

    def await_replicas(self) -> None:
        """Wait until in-sync followers have all that this broker has as a leader."""
        self._ask("POST", "replicas")

    def take_snapshot(self, directory: Path, taken_of: str, meeting: Mapping[str, object]) -> Snapshot:
        """Take part in a snapshot of the cluster."""
        clock = self._ask("POST", "snapshots", {"directory": str(directory), **meeting})
        return Snapshot(directory, taken_of, clock)

    def set_clock(self, snapshot: Snapshot) -> None:
        """Set the clock as it was."""
        self._ask("POST", "clock", snapshot.clock)

    def _command(self, directory: Path, port: int) -> dict[str, Any]:
        command = super()._command(directory, port)
        if self._security.protocol != "PLAINTEXT":
            properties = {**command["properties"], **self._security.member_properties()}
            del properties["security.inter.broker.protocol"]
            properties["listeners"] += f",{INTERNAL}://127.0.0.1:{self.port}"
            command["properties"] = properties
        # Brokers of a cluster need time to find each other.
        return {**command, "links": self._members.links(self.broker_id), "is_frozen": False}

    def _create_login(self, control: Control) -> None:
        """Do nothing: the cluster does it once it has a controller."""


class ClusterMembers:
    """The tree and the brokers, by id. `begin` starts them, and `await_started` waits for them."""

    def __init__(
        self, brokers: int, config: Mapping[str, object], security: Security, snapshot: Snapshot | None = None
    ) -> None:
        """With a `snapshot`, the cluster is as it was, with the brokers that it had."""
        self._launcher = Launcher.shared()
        self._security = security
        security.prepare(self._launcher)
        self._config = {**defaults(brokers), **config}
        self._directory = self._launcher.new_directory()
        token = secrets.token_urlsafe(16)
        parts = dict.fromkeys(range(1, brokers + 1)) if snapshot is None else snapshot.members
        fields: dict[str, object] = {"directory": str(self._directory), "token": token, "broker_ports": len(parts)}
        if snapshot is not None:
            fields["snapshot"] = str(snapshot.part(TREE))
        starting = self._launcher.request("start_tree", **fields)
        import http.client  # noqa: F401 - the control API will need it, and now there is time for it

        reply = self._launcher.reply(starting)
        self._tree_pid: int = reply["pid"]
        self._tree = Control(reply["control"], token)
        self.brokers: dict[int, Member] = {}
        self._nodes: set[Node] = {TREE}
        self.network = NetworkPlan(self._nodes)
        for (broker_id, part), port in zip(parts.items(), reply["ports"], strict=True):
            self._begin(broker_id, port, part)

    def add(self) -> int:
        """Start another broker; returns its id when it serves."""
        broker_id = max(self.brokers) + 1
        self._begin(broker_id, self._tree.ask("POST", "ports")["port"])
        try:
            self.await_started()
        except OdradekError:
            del self.brokers[broker_id]
            self._nodes.discard(broker_id)
            raise
        self.apply_network()
        return broker_id

    def _begin(self, broker_id: int, tree_port: int, snapshot: Snapshot | None = None) -> None:
        broker = self.brokers[broker_id] = Member(broker_id, self, tree_port, self._config, self._security)
        self._nodes.add(broker_id)
        broker.begin(self._launcher, snapshot)

    def await_started(self) -> None:
        """Wait until all brokers serve."""
        for broker in self.brokers.values():
            broker.await_started()

    def stop(self) -> None:
        """End all processes, and delete their data."""
        for broker in self.brokers.values():
            broker.discard()
        self._tree.close()
        self._launcher.run("end", pid=self._tree_pid, directory=str(self._directory))

    def snapshot(self, taken_of: str, topics: Sequence[Mapping[str, Any]]) -> Snapshot:
        """Save a consistent state of all processes. All brokers must be running and connected to each other."""
        directory = self._launcher.new_directory()
        meeting = {"meeting": str(directory / "meeting"), "processes": 1 + len(self.brokers)}
        (directory / "meeting").mkdir(parents=True)
        with ThreadPoolExecutor(1 + len(self.brokers)) as threads:
            for asked in [threads.submit(broker.await_replicas) for broker in self.brokers.values()]:
                asked.result()
            tree = {"directory": str(directory / TREE), **meeting}
            taking_tree = threads.submit(self._tree.ask, "POST", "snapshots", tree)
            taking = {
                broker_id: threads.submit(broker.take_snapshot, directory / str(broker_id), taken_of, meeting)
                for broker_id, broker in self.brokers.items()
            }
            taking_tree.result()
            members = {broker_id: taken.result() for broker_id, taken in taking.items()}
        return Snapshot(directory, taken_of, members=members, topics=topics)

    def running(self) -> dict[int, Member]:
        """The brokers that are neither paused nor ended, by id."""
        return {broker_id: broker for broker_id, broker in self.brokers.items() if broker.state is State.RUNNING}

    # -- the network and sessions --------------------------------------------------------------------------------------

    def links(self, node: Node) -> list[dict[str, object]]:
        """The faults that `node` has to know."""
        if node == TREE:
            return self.network.links(TREE, {broker_id: each.tree_port for broker_id, each in self.brokers.items()})
        return self.network.links(node, {broker_id: each.port for broker_id, each in self.brokers.items() if each.port})

    def apply_network(self) -> None:
        """Send the faults to all processes that must know them."""
        self._tree.ask("POST", "network", {"links": self.links(TREE)})
        for broker in self.running().values():
            broker.change_network()
        self.watch_sessions()

    def watch_sessions(self) -> None:
        """Let the tree end the sessions of brokers that are silent because they are paused or cut off."""
        self._sessions([])

    def end_session(self, broker_id: int) -> None:
        """Let the tree end the session of a broker whose process has ended."""
        self._sessions([broker_id])

    def _sessions(self, ended: Iterable[int]) -> None:
        silent = [
            broker_id
            for broker_id, broker in self.brokers.items()
            if broker.state is State.PAUSED or not self.network.are_connected(broker_id, TREE)
        ]
        body: dict[str, object] = {"ended": list(ended), "silent": silent}
        if "zookeeper.session.timeout.ms" in self._config:
            body["after_ms"] = int(str(self._config["zookeeper.session.timeout.ms"]))
        self._tree.ask("POST", "sessions", body)
