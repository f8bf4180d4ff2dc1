"""`Cluster`: brokers that replicate to each other, each in a separate process, for a test.

with odradek.Cluster(brokers=3) as cluster:
    app = start_app(cluster.bootstrap_servers)
    cluster.kill(cluster.await_leader("orders"))
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final, Self

from odradek.brokers import Broker, State
from odradek.cluster_members import ClusterMembers, Member
from odradek.cluster_state import ClusterState, View
from odradek.control import ExpectationError, KafkaError, OdradekError, Record
from odradek.kafka_under_test import PERIOD_S, WITHIN_S, Fault, KafkaUnderTest, Topic, unused_fault, wait_until
from odradek.network_plan import Node
from odradek.processes import Snapshot
from odradek.security_options import Security

PATIENCE_S: Final = 60.0
"""How long brokers may take on a busy machine for what a test did not ask to wait for, as to find each other."""


class Cluster(KafkaUnderTest):
    """Brokers 1, 2, ... and their ZooKeeper tree, from `start` to `stop`, or in a `with` block.

    `config` are keys of server.properties for all brokers; `tls` and `sasl` are as those of a broker. Clients reach
    every broker that runs: faults of the network are those between brokers, and between brokers and the tree.
    """

    def __init__(
        self,
        brokers: int = 3,
        *,
        config: Mapping[str, object] | None = None,
        tls: bool = False,
        sasl: str | None = None,
    ) -> None:
        if brokers < 1:
            raise OdradekError(f"a cluster has at least 1 broker, not {brokers}")
        super().__init__()
        self._security = Security(tls=tls, sasl=sasl)
        self._count = brokers
        self._config = {name: str(value) for name, value in (config or {}).items()}
        self._started: ClusterMembers | None = None
        self._faults: list[ClusterFault] = []
        """Faults that must hit something."""
        self._spare: ClusterMembers | None = None
        """The processes after the next `reset`."""
        self._restored: tuple[Snapshot, Future[Cluster]] | None = None
        """The cluster whose processes will be those after the next `restore` of the snapshot."""

    # -- life ----------------------------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Start the brokers; returns it when they know each other. Raises OdradekError with the reason of a failure."""
        if self._started is not None:
            raise OdradekError("the cluster runs already")
        self._begin(ClusterMembers(self._count, self._config, self._security))
        return self

    def stop(self) -> None:
        """End all processes at once, and delete their data."""
        for members in (self._started, self._spare):
            if members is not None:
                members.stop()
        self._discard_restored()
        self._started = self._spare = None

    def prepare_reset(self) -> None:
        """Start the brokers of the next `reset` in the background."""
        if self._spare is None:
            self._spare = ClusterMembers(self._count, self._config, self._security)

    def reset(self) -> None:
        """Replace the cluster by a new one with the brokers that it had at first, on other ports.

        The old ports refuse connections when this returns, so that a client left over from a test can do nothing.
        """
        with self._exclusively("reset"):
            old, spare = self._members, self._spare
            self._spare = None
            self._faults.clear()
            self._begin(spare or ClusterMembers(self._count, self._config, self._security))
            old.stop()

    def snapshot(self) -> Snapshot:
        """Save a consistent state of all brokers and the tree; see `Broker.snapshot`.

        Raises OdradekError unless all brokers run, and no packets between them are lost.
        """
        with self._exclusively("snapshot"):
            members = self._members
            idle = [f"{each!r} has {each.state.value}" for each in members.brokers.values() if not each.is_running]
            if idle or members.network.description():
                now = f"{', '.join(idle) or 'they run'}{members.network.description()}"
                raise OdradekError(f"all brokers must run and reach each other before you take a snapshot; {now}")
            snapshot = members.snapshot(self._description, self._state().topics)
            self._prepare_restore(snapshot)
            return snapshot

    def restore(self, snapshot: Snapshot) -> None:
        """Replace the cluster by a new one that is as it was at `snapshot`, on other ports; see `Broker.restore`.

        It has the brokers of then. A partition is led by its first replica if it was, and by any other one if not.
        """
        with self._exclusively("restore"):
            old = self._members
            snapshot.check(self._description)
            if self._restored is None or self._restored[0] is not snapshot:
                self._prepare_restore(snapshot)
            assert self._restored is not None
            (_, restored), self._restored = self._restored, None
            self._started, self._faults = restored.result()._members, []
            for broker_id, member in snapshot.members.items():
                if member.clock["freeze"]:  # otherwise it was started with its clock as it was
                    self._members.brokers[broker_id].set_clock(member)
            old.stop()
            self._prepare_restore(snapshot)

    def _prepare_restore(self, snapshot: Snapshot) -> None:
        """Start the brokers of the next `restore` in the background."""
        self._discard_restored()
        threads = ThreadPoolExecutor(1)
        self._restored = snapshot, threads.submit(self._copy, snapshot)
        threads.shutdown(wait=False)

    def _copy(self, snapshot: Snapshot) -> Cluster:
        """A new cluster that is as it was."""
        copy = Cluster(self._count, config=self._config)
        copy._security = self._security
        copy._begin(ClusterMembers(self._count, self._config, self._security, snapshot))
        try:
            copy._await_topics(snapshot.topics)
        except BaseException:
            copy.stop()
            raise
        return copy

    def _discard_restored(self) -> None:
        """Let the processes of the next `restore` end, as soon as they have started."""
        if self._restored is not None:
            (_, restored), self._restored = self._restored, None
            restored.add_done_callback(lambda done: None if done.exception() else done.result().stop())

    def _await_topics(self, topics: Sequence[Mapping[str, Any]]) -> None:
        """Wait until the partitions of these topics have the in-sync replicas, preferred leaders and ends they had."""
        before = {(topic["name"], each["partition"]): each for topic in topics for each in topic["partitions"]}

        def missing(state: ClusterState, key: tuple[str, int]) -> bool:
            found, then = state.partition(*key), before[key]
            if found is None or not set(then["isr"]) <= set(found["isr"]):
                return True
            return "latest" not in found or found["latest"] < then["latest"]

        def is_complete(state: ClusterState) -> bool:
            return not any(missing(state, key) for key in before)

        state = self._await(is_complete, PATIENCE_S, lambda _state: "expected the replicas of the snapshot")
        moved = {key: each["leader"] for key, each in before.items() if each["leader"] == each["replicas"][0]}
        for (topic, partition), leader in moved.items():
            if state.leads(topic, partition) != leader:
                self._ask("POST", "elections", {"topic": topic, "partition": partition})

        def have_leaders(state: ClusterState) -> bool:
            return all(state.leads(*key) == leader for key, leader in moved.items())

        self._await(have_leaders, PATIENCE_S, lambda _state: "expected the leaders of the snapshot")

    @property
    def _description(self) -> str:
        """The options that must be equal for a snapshot to be restored."""
        return f"a cluster of {self._count} with {self._security}, config={dict(sorted(self._config.items()))}"

    def _begin(self, members: ClusterMembers) -> None:
        try:
            members.await_started()
        except BaseException:
            members.stop()
            raise
        self._started = members
        self._await_brokers()
        if self._security.is_scram:
            self._ask("POST", "users", self._security.login)

    def _await_brokers(self) -> None:
        """Wait until all brokers that run and are not cut off know each other."""

        def is_complete(state: ClusterState) -> bool:
            known = set(state.views)
            return state.controller is not None and all(
                known <= set(map(int, view.broker["brokers"])) for view in self._views_near(state.controller, state)
            )

        self._await(is_complete, PATIENCE_S, lambda _state: "expected all brokers to know each other")

    @property
    def is_running(self) -> bool:
        """Whether the cluster runs."""
        return self._started is not None

    # -- brokers -------------------------------------------------------------------------------------------------------

    @property
    def bootstrap_servers(self) -> str:
        """The addresses of all brokers, for clients."""
        return ",".join(broker.bootstrap_servers for broker in self._members.brokers.values())

    @property
    def brokers(self) -> list[int]:
        """The ids of all brokers, whether they run or not."""
        return list(self._members.brokers)

    def broker(self, broker_id: int) -> Broker:
        """One broker: its address, what it sees, and faults of it alone."""
        return self._broker(broker_id)

    def kill(self, broker_id: int) -> None:
        """End a broker as a power cut would (SIGKILL); its data stays. The tree ends its session at once."""
        self._broker(broker_id).kill()

    def stop_broker(self, broker_id: int) -> None:
        """Shut a broker down cleanly: it hands its leaderships over first. Its data stays."""
        self._broker(broker_id).shut_down()

    def restart(self, broker_id: int) -> None:
        """Start a broker on its data and its port. One that runs is shut down cleanly before."""
        self._broker(broker_id).restart()

    def pause(self, broker_id: int) -> None:
        """Stop the process of a broker (SIGSTOP). The tree ends its session after half a second."""
        self._broker(broker_id).pause()

    def resume(self, broker_id: int) -> None:
        """Let a paused broker go on."""
        self._broker(broker_id).resume()

    def expire_session(self, broker_id: int) -> None:
        """End the session of a broker with the tree, as if the broker had been silent for too long.

        It loses what it leads, and registers again in a new session.
        """
        self._broker(broker_id)
        self._members.end_session(broker_id)

    def add_broker(self) -> int:
        """Start one more broker; returns its id when the others know it."""
        broker_id = self._members.add()
        self._await_brokers()
        return broker_id

    # -- network -------------------------------------------------------------------------------------------------------

    def partition(self, *groups: AbstractSet[Node]) -> None:
        """Cut the network between groups of brokers, such as `{1}, {2, 3}`. Existing connections are cut, too.

        Data sent across the cut is neither lost nor refused: it arrives after `heal`, as if TCP had retransmitted it.
        The ZooKeeper tree is on the side with most brokers, unless a group has "tree" in it. The session of a broker
        that is cut off from it ends after half a second, or after zookeeper.session.timeout.ms if `config` sets it.
        """
        self._members.network.partition(groups)
        self._members.apply_network()

    def isolate(self, broker_id: Node) -> None:
        """Cut a broker (or "tree") off from all brokers and the tree."""
        self._members.network.isolate(broker_id)
        self._members.apply_network()

    def cut(self, sender: Node, receiver: Node) -> None:
        """Cut one direction: what `sender` sends does not reach `receiver`."""
        self._members.network.cut(sender, receiver)
        self._members.apply_network()

    def latency(self, one: Node, other: Node, *, ms: float) -> None:
        """Let everything between two brokers, or a broker and "tree", take `ms` longer in each direction."""
        self._members.network.set_latency(one, other, ms)
        self._members.apply_network()

    def heal(self) -> None:
        """End all cuts and latencies."""
        self._members.network.heal()
        self._members.apply_network()

    # -- topics and records --------------------------------------------------------------------------------------------

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        *,
        replication_factor: int | None = None,
        config: Mapping[str, object] | None = None,
    ) -> Topic:
        """Create a topic; returns when its leaders lead, and all brokers that run and are not cut off know them.

        Without a replication factor, there are three replicas if there are so many brokers. Raises KafkaError.
        """
        topic = super().create_topic(name, partitions, replication_factor=replication_factor, config=config)

        def knows(view: View) -> bool:
            found = view.topic(name)
            return found is not None and all(each["leader"] >= 0 for each in found["partitions"])

        def is_complete(state: ClusterState) -> bool:
            found = next((each for each in state.topics if each["name"] == name), None)
            return found is not None and all("latest" in each for each in found["partitions"])

        self._await_known(knows, is_complete, f"expected every broker to know the topic {name}")
        return topic

    def delete_topic(self, name: str) -> None:
        """Delete a topic; returns when all brokers that run and are not cut off have forgotten it."""
        super().delete_topic(name)
        self._await_known(lambda view: view.topic(name) is None, None, f"expected no broker to know the topic {name}")

    def alter_config(self, config: Mapping[str, object], *, topic: str | None = None) -> None:
        """See `KafkaUnderTest.alter_config`."""
        if topic is not None:
            super().alter_config(config, topic=topic)
            return
        for broker in self._members.running().values():
            broker.alter_config(config)

    def describe_topics(self) -> list[dict[str, Any]]:
        """The topics with their partitions: leader, replicas, ISR, earliest and latest offset.

        If the brokers disagree, the newest epoch wins. A partition has no offsets while its leader is down.
        """
        return [topic for topic in self._state().topics if not topic["internal"]]

    def records(
        self, topic: str, partition: int | None = None, *, first: int = 0, isolation: str = "read_committed"
    ) -> list[Record]:
        """The records of a topic as its leaders have them, by partition and offset, without a consumer."""
        state = self._state()
        found = next((each for each in state.topics if each["name"] == topic), None)
        if found is None:
            raise KafkaError("UNKNOWN_TOPIC_OR_PARTITION", f"no topic {topic!r}")
        wanted = range(len(found["partitions"])) if partition is None else [partition]
        return [
            record
            for number in wanted
            for record in self._leader(state, topic, number).records(topic, number, first=first, isolation=isolation)
        ]

    def groups(self) -> list[dict[str, Any]]:
        """The groups with their state, their members' partitions, and their committed offsets."""
        brokers = self._members.running().values()
        return sorted((group for broker in brokers for group in broker.groups()), key=lambda group: group["group_id"])

    def _append(self, topic: str, partition: int, records: Iterable[Mapping[str, Any]]) -> int:
        return self._leader(self._state(), topic, partition)._append(topic, partition, records)

    def _leader(self, state: ClusterState, topic: str, partition: int) -> Member:
        leader = state.leads(topic, partition)
        if leader is None:
            raise OdradekError(f"no broker leads {topic}-{partition}: {self._describe(state, topic, partition)}")
        return self._members.brokers[leader]

    # -- faults and requests -------------------------------------------------------------------------------------------

    def _fault(self, api: str, action: str, *, optional: bool = False, **options: Any) -> Fault:
        """Set a fault at every broker that runs; each counts its own hits."""
        running = self._members.running().values()
        fault = ClusterFault([broker._fault(api, action, optional=True, **options) for broker in running])
        if not optional:
            self._faults.append(fault)
        return fault

    def clear_faults(self) -> None:
        """Remove all faults."""
        self._faults.clear()
        for broker in self._members.running().values():
            broker.clear_faults()

    def check_faults(self) -> None:
        """Raise ExpectationError if a fault hit nothing at any broker that runs, unless it is optional."""
        for broker in self._members.running().values():
            broker.check_faults()
        unused = [unused_fault(fault.described()) for fault in self._faults if not fault.hits]
        if unused:
            raise ExpectationError("\n".join(unused))

    def requests(self, api: str | None = None, *, client_id: str | None = None) -> list[dict[str, Any]]:
        """See `KafkaUnderTest.requests`; `broker_id` says who answered."""
        found = [
            {"broker_id": broker_id, **each}
            for broker_id, broker in self._members.running().items()
            for each in broker.requests(api, client_id=client_id)
        ]
        return sorted(found, key=lambda each: each["time_ms"])

    def report(self) -> str:
        """The last requests, the groups and the end of the log of each broker, for a person."""
        return "\n".join(f"broker {broker_id}:\n{each.report()}" for broker_id, each in self._members.running().items())

    # -- leaders and replicas ------------------------------------------------------------------------------------------

    def await_leader(
        self, topic: str, partition: int = 0, *, among: Iterable[int] | None = None, within: float = WITHIN_S
    ) -> int:
        """Wait until one of these brokers (None: any) leads a partition; returns its id. Raises ExpectationError."""
        wanted = self._ids(among)

        def leads(state: ClusterState) -> bool:
            return state.leads(topic, partition) in wanted

        def expected(state: ClusterState) -> str:
            wish = f"expected a leader of {topic}-{partition} among {_text(wanted)}"
            return f"{wish}; {self._describe(state, topic, partition)}"

        leader = self._await(leads, within, expected).leads(topic, partition)
        assert leader is not None
        return leader

    def await_isr(self, topic: str, ids: Iterable[int], partition: int = 0, *, within: float = WITHIN_S) -> None:
        """Wait until exactly these replicas of a partition are in sync with a leader. Raises ExpectationError."""
        wanted = self._ids(ids)

        def are_in_sync(state: ClusterState) -> bool:
            found = state.partition(topic, partition)
            return found is not None and "latest" in found and set(found["isr"]) == wanted

        def expected(state: ClusterState) -> str:
            wish = f"expected the ISR {_text(wanted)} of {topic}-{partition}"
            return f"{wish}; {self._describe(state, topic, partition)}"

        self._await(are_in_sync, within, expected)

    def await_controller(self, *, among: Iterable[int] | None = None, within: float = WITHIN_S) -> int:
        """Wait until one of these brokers (None: any) is the controller; returns its id. Raises ExpectationError."""
        wanted = self._ids(among)

        def expected(state: ClusterState) -> str:
            now = "there is none" if state.controller is None else f"it is broker {state.controller}"
            return f"expected a controller among {_text(wanted)}; {now}; {self._describe_brokers(state)}"

        controller = self._await(lambda state: state.controller in wanted, within, expected).controller
        assert controller is not None
        return controller

    def move(self, topic: str, partition: int = 0, *, leader: int, within: float = WITHIN_S) -> None:
        """Let `leader` lead a partition. Unless it has a replica, it gets that of the last one in the list.

        Raises KafkaError, and ExpectationError if it does not lead in time.
        """
        self._broker(leader)
        found = self._state().partition(topic, partition)
        if found is None:
            raise KafkaError("UNKNOWN_TOPIC_OR_PARTITION", f"{topic}-{partition} does not exist")
        others = [each for each in found["replicas"] if each != leader]
        replicas = [leader, *others[: len(found["replicas"]) - 1]]
        body = {"topic": topic, "partition": partition}
        self._ask("POST", "reassignments", {**body, "replicas": replicas})

        def are_moved(state: ClusterState) -> bool:
            now = state.partition(topic, partition)
            return now is not None and now["replicas"] == replicas and leader in now["isr"]

        def expected(state: ClusterState) -> str:
            wish = f"expected broker {leader} in sync as the first replica of {topic}-{partition}"
            return f"{wish}; {self._describe(state, topic, partition)}"

        self._await(are_moved, within, expected)
        self._ask("POST", "elections", body)
        self.await_leader(topic, partition, among={leader}, within=within)

    def move_coordinator(
        self,
        *,
        group: str | None = None,
        transactional_id: str | None = None,
        leader: int,
        within: float = WITHIN_S,
    ) -> None:
        """Let `leader` coordinate a group, or the transactions of a transactional id, and all others of its partition.

        Raises as `move`; the internal topic exists once a group or a transaction has used it.
        """
        if (group is None) == (transactional_id is None):
            raise OdradekError("name either a group or a transactional_id")
        control = self._members.brokers[self.await_controller()]._control
        of = control.ask("GET", "coordinator", group=group, transactional_id=transactional_id)
        self.move(of["topic"], of["partition"], leader=leader, within=within)

    # -- what the brokers say ------------------------------------------------------------------------------------------

    @property
    def _members(self) -> ClusterMembers:
        if self._started is None:
            raise OdradekError("the cluster does not run: call start(), or use a with block")
        return self._started

    def _broker(self, broker_id: int) -> Member:
        self._ids([broker_id])
        return self._members.brokers[broker_id]

    def _ids(self, ids: Iterable[int] | None) -> set[int]:
        """These brokers, or all. Raises OdradekError for an unknown one."""
        known = self._members.brokers
        wanted = set(known) if ids is None else set(ids)
        if unknown := wanted - set(known):
            raise OdradekError(f"the cluster has no broker {_text(unknown)}; there are: {_text(known)}")
        return wanted

    def _ask(self, method: str, path: str, body: object = None) -> Any:
        """Send a request to the controller, also to the next one if it changes."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            within = max(deadline - time.monotonic(), 0)
            controller = self.await_controller(within=within)
            try:
                return self._members.brokers[controller]._ask(method, path, body)
            except KafkaError as error:
                if error.name != "NOT_CONTROLLER" or time.monotonic() >= deadline:
                    raise
            time.sleep(PERIOD_S)

    def _state(self) -> ClusterState:
        views = {}
        for broker_id, broker in self._members.running().items():
            try:
                views[broker_id] = broker.view()
            except KafkaError:
                raise
            except OdradekError:
                continue  # it has ended by itself: messages list it as not answering
        return ClusterState.of(views)

    def _views_near(self, broker_id: int, state: ClusterState) -> list[View]:
        """The views of the brokers that are not cut off from this one."""
        network = self._members.network
        return [
            view for each, view in state.views.items() if each == broker_id or network.are_connected(each, broker_id)
        ]

    def _await_known(
        self, knows: Callable[[View], bool], is_complete: Callable[[ClusterState], bool] | None, wish: str
    ) -> None:
        """Wait until the brokers that are not cut off from the controller know something."""

        def is_known(state: ClusterState) -> bool:
            return (
                state.controller is not None
                and all(map(knows, self._views_near(state.controller, state)))
                and (is_complete is None or is_complete(state))
            )

        self._await(is_known, PATIENCE_S, lambda state: f"{wish}; {self._describe_brokers(state)}")

    def _await(
        self, is_met: Callable[[ClusterState], bool], within: float, expected: Callable[[ClusterState], str]
    ) -> ClusterState:
        found = wait_until(self._state, is_met, within)
        if not is_met(found):
            raise ExpectationError(f"{expected(found)} (after {within:g} s)")
        return found

    def _describe(self, state: ClusterState, topic: str, partition: int) -> str:
        return f"{state.describe(topic, partition)}; {self._describe_brokers(state)}"

    def _describe_brokers(self, state: ClusterState) -> str:
        """Which brokers run, have crashed or are paused, and the cuts."""
        doing: dict[str, list[int]] = {}
        for broker_id, broker in self._members.brokers.items():
            has_crashed = broker.state is State.RUNNING and broker_id not in state.views
            doing.setdefault("not answering" if has_crashed else broker.state.value, []).append(broker_id)
        brokers = ", ".join(f"{_text(ids)} {what}" for what, ids in sorted(doing.items()))
        return f"brokers: {brokers}{self._members.network.description()}"


def _text(ids: Iterable[int]) -> str:
    return "{" + ", ".join(map(str, sorted(ids))) + "}"


class ClusterFault(Fault):
    """The same fault at several brokers. One that ended or was restarted since has lost it."""

    def __init__(self, parts: list[Fault]) -> None:
        self._parts = parts
        self.id = parts[0].id

    @property
    def hits(self) -> int:
        """The number of requests that it has hit at all brokers together."""
        return sum(each["hits"] for each in self._described())

    def remove(self) -> None:
        """Remove it; requests are served again."""
        for part in self._parts:
            with suppress(OdradekError):
                part.remove()

    def described(self) -> dict[str, Any]:
        """As one broker describes it, if possible one with a request that came near."""
        return min(self._described(), key=lambda each: each["nearest"] is None)

    def _described(self) -> list[dict[str, Any]]:
        found = []
        for part in self._parts:
            with suppress(OdradekError):
                found.append(part.described())
        return found
