"""`odradek.Cluster`: brokers that replicate to each other, with real clients."""

from __future__ import annotations

import itertools
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from confluent_kafka import Consumer, Producer

import odradek
from odradek.clusters import Cluster
from protocol.errors import ErrorCode
from protocol.messages.produce import ProduceResponse
from tests.kit.waiting import PATIENCE_S, eventually
from tests.kit.wire_client import WireClient
from tests.kit.wire_requests import produce

TOPIC = "flights"


@pytest.fixture(scope="module")
def running() -> Iterator[Cluster]:
    with odradek.Cluster(brokers=3, config={"replica.lag.time.max.ms": 1000}) as cluster:
        yield cluster


@pytest.fixture
def cluster(running: Cluster) -> Cluster:
    running.reset()
    return running


class Sender:
    """Sends numbered records with acks=all until it is stopped."""

    def __init__(self, bootstrap_servers: str) -> None:
        self.acknowledged: list[bytes] = []
        self.failed: list[str] = []
        self._stops = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap_servers,
                "enable.idempotence": True,
                "linger.ms": 0,
                "log_level": 0,
                "message.timeout.ms": 120_000,
                "reconnect.backoff.max.ms": 100,
                # A leader that is cut off answers neither yes nor no.
                "request.timeout.ms": 2000,
                "socket.timeout.ms": 3000,
                "topic.metadata.refresh.interval.ms": 500,
            }
        )
        self._thread = threading.Thread(target=self._run)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Send no more, and wait until everything is acknowledged."""
        self._stops.set()
        self._thread.join()
        assert self._producer.flush(120) == 0

    def goes_on(self) -> None:
        """Wait until ten more records are acknowledged."""
        before = len(self.acknowledged)
        eventually("more is acknowledged", lambda: len(self.acknowledged), lambda count: count >= before + 10)

    def _run(self) -> None:
        for number in itertools.count():
            value = b"%d" % number

            def delivered(error: object, _message: object, value: bytes = value) -> None:
                if error is None:
                    self.acknowledged.append(value)
                else:
                    self.failed.append(str(error))

            self._producer.produce(TOPIC, value, partition=0, on_delivery=delivered)
            while not self._stops.is_set() and len(self._producer) >= 5:
                self._producer.poll(0.01)
            if self._stops.is_set():
                return


@contextmanager
def load(cluster: Cluster) -> Iterator[Sender]:
    """Records are sent during the block. At its end all replicas come in sync, and hold all of them in order."""
    sender = Sender(cluster.bootstrap_servers)
    sender.start()
    try:
        sender.goes_on()
        yield sender
        sender.goes_on()
    finally:
        sender.stop()
    assert sender.failed == []
    cluster.await_isr(TOPIC, {1, 2, 3}, within=PATIENCE_S)
    assert [each.value for each in cluster.records(TOPIC)] == sender.acknowledged
    for broker_id in cluster.brokers:
        cluster.move(TOPIC, leader=broker_id, within=PATIENCE_S)
        assert [each.value for each in cluster.broker(broker_id).records(TOPIC)] == sender.acknowledged


def outcome(bootstrap_servers: str, acks: int) -> ErrorCode:
    """Send one record to this broker; returns the error. A client of Kafka would look for another leader."""
    host, _, port = bootstrap_servers.partition(":")
    with WireClient(host, int(port)) as client:
        response = client.ask(produce(TOPIC, [b"acks=%d" % acks], acks).replace(timeout_ms=500), 9)
    assert isinstance(response, ProduceResponse)
    return ErrorCode(response.responses[0].partition_responses[0].error_code)


def test_records_are_read_from_the_leaders(cluster: Cluster) -> None:
    topic = cluster.create_topic(TOPIC, partitions=3)
    assert sorted(cluster.await_leader(TOPIC, each) for each in range(3)) == [1, 2, 3]
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "acks": "all"})
    with cluster.expect(TOPIC, count=3, within=PATIENCE_S) as got:
        for partition in range(3):
            producer.produce(TOPIC, b"%d" % partition, partition=partition)
        assert producer.flush(60) == 0
    assert [(each.partition, each.value) for each in got] == [(0, b"0"), (1, b"1"), (2, b"2")]
    cluster.produce(TOPIC, "more", partition=1)
    assert (topic.earliest(1), topic.latest(1)) == (0, 2)
    assert [each.value for each in topic.records(1, first=1)] == [b"more"]
    (described,) = cluster.describe_topics()
    assert [sorted(each["replicas"]) for each in described["partitions"]] == [[1, 2, 3]] * 3
    cluster.create_topic("other", replication_factor=2)
    cluster.delete_topic(TOPIC)
    assert cluster.topics() == ["other"]
    assert all(cluster.broker(each).topics() == ["other"] for each in cluster.brokers)


def test_a_transaction_in_a_cluster(cluster: Cluster) -> None:
    cluster.create_topic(TOPIC)
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "transactional.id": "t"})
    producer.init_transactions(60)
    for value, end in ((b"void", producer.abort_transaction), (b"kept", producer.commit_transaction)):
        producer.begin_transaction()
        producer.produce(TOPIC, value)
        end(60)
    # A commit is answered before its marker is in the partition.
    kept = eventually("the end is visible", lambda: cluster.records(TOPIC), bool)
    assert [each.value for each in kept] == [b"kept"]


def test_nothing_acknowledged_is_lost_when_a_leader_is_killed(cluster: Cluster) -> None:
    cluster.create_topic(TOPIC)
    with load(cluster) as sender:
        killed = cluster.await_leader(TOPIC)
        cluster.kill(killed)
        left = {1, 2, 3} - {killed}
        assert cluster.await_leader(TOPIC, among=left, within=PATIENCE_S) != killed
        cluster.await_isr(TOPIC, left, within=PATIENCE_S)
        sender.goes_on()
        cluster.restart(killed)


def test_nothing_acknowledged_is_lost_in_a_partition(cluster: Cluster) -> None:
    cluster.create_topic(TOPIC)
    with load(cluster) as sender:
        leader = cluster.await_leader(TOPIC)
        others = {1, 2, 3} - {leader}
        cluster.partition({leader}, others)
        # The client is on the side of the majority. It would stay with the isolated broker, if that still answered.
        isolated = cluster.broker(leader)
        for api in ("ApiVersions", "Metadata", "Produce"):
            isolated.close_connection(api, times=None, optional=True)
        cluster.await_leader(TOPIC, among=others, within=PATIENCE_S)
        sender.goes_on()
        isolated.clear_faults()
        cluster.heal()


def test_a_leader_in_a_minority_acknowledges_nothing(cluster: Cluster) -> None:
    """Only acks=1 is acknowledged, and lost, as in Kafka."""
    cluster.create_topic(TOPIC).produce(["before"])
    leader = cluster.await_leader(TOPIC)
    others = {1, 2, 3} - {leader}
    cluster.isolate(leader)
    cluster.await_leader(TOPIC, among=others, within=PATIENCE_S)
    cluster.produce(TOPIC, "meanwhile")
    minority = cluster.broker(leader)
    assert minority.describe_topics()[0]["partitions"][0]["leader"] == leader
    assert outcome(minority.bootstrap_servers, -1) is ErrorCode.REQUEST_TIMED_OUT
    assert outcome(minority.bootstrap_servers, 1) is ErrorCode.NONE
    cluster.heal()
    cluster.await_isr(TOPIC, {1, 2, 3}, within=PATIENCE_S)
    cluster.move(TOPIC, leader=leader, within=PATIENCE_S)
    assert [each.value for each in cluster.records(TOPIC)] == [b"before", b"meanwhile"]


def test_a_paused_leader_is_replaced(cluster: Cluster) -> None:
    cluster.create_topic(TOPIC)
    with load(cluster) as sender:
        paused = cluster.await_leader(TOPIC)
        cluster.pause(paused)
        with pytest.raises(odradek.OdradekError, match="a paused broker cannot shut down"):
            cluster.stop_broker(paused)
        cluster.await_leader(TOPIC, among={1, 2, 3} - {paused}, within=PATIENCE_S)
        sender.goes_on()
        cluster.resume(paused)


def test_a_leader_that_is_cut_off_from_the_tree_is_replaced(cluster: Cluster) -> None:
    cluster.create_topic(TOPIC)
    with load(cluster):
        leader = cluster.await_leader(TOPIC)
        cluster.cut(leader, "tree")
        cluster.await_leader(TOPIC, among={1, 2, 3} - {leader}, within=PATIENCE_S)
        cluster.heal()


@pytest.mark.parametrize("sends", [True, False])
def test_a_one_way_cut_takes_a_follower_out_of_the_isr(cluster: Cluster, sends: bool) -> None:
    """A follower needs both directions to its leader, and its session needs neither."""
    cluster.create_topic(TOPIC).produce(["before"])
    cluster.await_isr(TOPIC, {1, 2, 3}, within=PATIENCE_S)
    leader, controller = cluster.await_leader(TOPIC), cluster.await_controller()
    follower = min({1, 2, 3} - {leader, controller})  # the leader asks the controller to change the ISR
    (other,) = {1, 2, 3} - {leader, follower}
    cluster.cut(*((follower, leader) if sends else (leader, follower)))
    cluster.produce(TOPIC, "meanwhile")  # a follower that has every record stays in sync
    cluster.await_isr(TOPIC, {leader, other}, within=PATIENCE_S)
    cluster.heal()
    cluster.await_isr(TOPIC, {1, 2, 3}, within=PATIENCE_S)


def test_a_latency_holds_up_the_replicas(cluster: Cluster) -> None:
    """A follower gets a record after one latency, and its next fetch arrives after another one."""
    cluster.create_topic(TOPIC)
    leader = cluster.await_leader(TOPIC)
    for follower in {1, 2, 3} - {leader}:
        cluster.latency(leader, follower, ms=150)
    began_s = time.monotonic()
    cluster.produce(TOPIC, "late")
    assert time.monotonic() - began_s >= 0.3
    cluster.heal()
    cluster.await_isr(TOPIC, {1, 2, 3}, within=PATIENCE_S)


def test_brokers_stop_and_start_in_turn(cluster: Cluster) -> None:
    cluster.create_topic(TOPIC)
    with load(cluster):
        for broker_id in cluster.brokers:
            cluster.stop_broker(broker_id)
            assert cluster.await_leader(TOPIC, within=PATIENCE_S) != broker_id
            cluster.restart(broker_id)
            cluster.await_isr(TOPIC, {1, 2, 3}, within=PATIENCE_S)
        cluster.restart(1)


def test_another_controller(cluster: Cluster) -> None:
    first = cluster.await_controller()
    cluster.isolate(first)
    second = cluster.await_controller(among={1, 2, 3} - {first}, within=PATIENCE_S)
    cluster.create_topic(TOPIC, replication_factor=2)
    cluster.heal()
    eventually("the old one knows the topic", cluster.broker(first).topics, lambda topics: topics == [TOPIC])
    cluster.kill(second)
    assert cluster.await_controller(within=PATIENCE_S) != second


def test_a_new_broker_takes_over_a_partition(cluster: Cluster) -> None:
    cluster.create_topic(TOPIC).produce(["before"])
    assert cluster.add_broker() == 4
    cluster.move(TOPIC, leader=4, within=PATIENCE_S)
    assert cluster.await_leader(TOPIC) == 4
    replicas = cluster.describe_topics()[0]["partitions"][0]["replicas"]
    assert replicas[0] == 4
    assert len(replicas) == 3
    assert [each.value for each in cluster.broker(4).records(TOPIC)] == [b"before"]
    assert len(cluster.bootstrap_servers.split(",")) == 4


def test_what_a_wait_expected_and_what_there_is(cluster: Cluster) -> None:
    cluster.create_topic(TOPIC)
    replicas = cluster.describe_topics()[0]["partitions"][0]["replicas"]
    leader, follower, other = replicas
    cluster.await_isr(TOPIC, {1, 2, 3}, within=PATIENCE_S)
    state = f"flights-0 has leader {leader}, replicas {replicas}, ISR [1, 2, 3]; brokers: {{1, 2, 3}} running"
    with pytest.raises(odradek.ExpectationError) as missed:
        cluster.await_leader(TOPIC, among={follower}, within=0.1)
    assert str(missed.value) == f"expected a leader of flights-0 among {{{follower}}}; {state} (after 0.1 s)"
    with pytest.raises(AssertionError) as missed:
        cluster.await_isr(TOPIC, {leader}, within=0.1)
    assert str(missed.value) == f"expected the ISR {{{leader}}} of flights-0; {state} (after 0.1 s)"
    cluster.cut(follower, other)
    cluster.kill(other)
    cluster.pause(follower)
    with pytest.raises(odradek.ExpectationError) as missed:
        cluster.await_leader(TOPIC, 1, within=0.1)
    doing = f"brokers: {{{other}}} ended, {{{follower}}} paused, {{{leader}}} running; cut: {follower} -> {other}"
    assert f"flights-1 does not exist; {doing}" in str(missed.value)
    with pytest.raises(odradek.ExpectationError) as missed:
        cluster.await_controller(among={other}, within=0.1)
    assert f"expected a controller among {{{other}}}; " in str(missed.value)


def test_requests_that_make_no_sense(cluster: Cluster) -> None:
    cases: list[tuple[Callable[[], object], str]] = [
        (lambda: cluster.kill(4), "the cluster has no broker {4}; there are: {1, 2, 3}"),
        (lambda: cluster.partition({1}), "a partition has at least two groups, and each node is in one: {1}"),
        (lambda: cluster.partition({1, 2}, {2, 3}), "each node is in one: {1, 2}, {2, 3}"),
        (lambda: cluster.partition({1}, {2}), "no group is the largest one: name the side of the tree"),
        (lambda: cluster.isolate(7), "the cluster has no node 7; there are: 1, 2, 3, 'tree'"),
        (lambda: cluster.latency(1, 2, ms=-1), "a latency is at least 0 ms, not -1"),
        (lambda: cluster.broker(1).reset(), "broker 1 belongs to a cluster: reset the cluster"),
        (cluster.start, "the cluster runs already"),
        (odradek.Cluster().topics, "the cluster does not run: call start()"),
        (lambda: odradek.Cluster(brokers=0), "a cluster has at least 1 broker, not 0"),
        (lambda: cluster.records("missing"), "UNKNOWN_TOPIC_OR_PARTITION: no topic 'missing'"),
        (lambda: cluster.produce("missing", "v"), "no broker leads missing-0: missing-0 does not exist"),
        (lambda: cluster.move("missing", leader=1), "UNKNOWN_TOPIC_OR_PARTITION: missing-0 does not exist"),
        (lambda: cluster.create_topic("t", replication_factor=4), "INVALID_REPLICATION_FACTOR"),
    ]
    for act, message in cases:
        with pytest.raises(odradek.OdradekError, match=re.escape(message)):
            act()


def test_a_start_that_fails_says_why() -> None:
    with pytest.raises(odradek.OdradekError, match=r"many for configuration num\.io\.threads"):
        odradek.Cluster(config={"num.io.threads": "many"}).start()


def test_a_reset_leaves_nothing(cluster: Cluster) -> None:
    cluster.create_topic(TOPIC)
    cluster.isolate(1)
    cluster.kill(2)
    ports = [int(each.rpartition(":")[2]) for each in cluster.bootstrap_servers.split(",")]
    cluster.prepare_reset()
    cluster.reset()
    for port in ports:
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", port)) != 0
    assert cluster.topics() == []
    cluster.create_topic(TOPIC)
    cluster.await_isr(TOPIC, {1, 2, 3}, within=PATIENCE_S)


def test_a_fault_hits_whichever_broker_is_asked(cluster: odradek.Cluster) -> None:
    cluster.create_topic("orders", replication_factor=3)
    leader = cluster.await_leader("orders")
    fault = cluster.fail("Produce", "NOT_ENOUGH_REPLICAS", topic="orders")
    client = Producer({"bootstrap.servers": cluster.bootstrap_servers, "client.id": "shop"})
    client.produce("orders", b"A1")
    assert client.flush(60) == 0
    assert fault.hits == 1
    cluster.check_faults()
    asked = cluster.requests(api="Produce", client_id="shop")
    assert [(each["broker_id"], each["errors"]) for each in asked] == [(leader, ["NOT_ENOUGH_REPLICAS"]), (leader, [])]
    unused = cluster.fail("Produce", "NOT_ENOUGH_REPLICAS", topic="invoices")
    with pytest.raises(odradek.ExpectationError, match=r"for Produce \{'topic': 'invoices'\} hit nothing"):
        cluster.check_faults()
    unused.remove()
    with pytest.raises(odradek.OdradekError, match="unknown API 'Produze'"):
        cluster.fail("Produze", "NOT_ENOUGH_REPLICAS")


def test_another_coordinator(cluster: odradek.Cluster) -> None:
    with pytest.raises(odradek.KafkaError, match="__consumer_offsets does not exist yet"):
        cluster.move_coordinator(group="billing", leader=2)
    cluster.create_topic(TOPIC).produce([b"1", b"2"])
    consumer = Consumer({
        "bootstrap.servers": cluster.bootstrap_servers, "group.id": "billing", "auto.offset.reset": "earliest",
        "topic.metadata.refresh.interval.ms": 500,
    })  # fmt: skip
    consumer.subscribe([TOPIC])
    assert consumer.poll(PATIENCE_S) is not None
    for leader in cluster.brokers:
        cluster.move_coordinator(group="billing", leader=leader, within=PATIENCE_S)
        assert cluster.await_leader("__consumer_offsets", among={leader}) == leader
        eventually("a member has joined", cluster.broker(leader).groups, bool)
    consumer.commit(asynchronous=False)
    consumer.close()
    cluster.await_committed("billing", TOPIC, 1)
    with pytest.raises(odradek.OdradekError, match="either a group or a transactional_id"):
        cluster.move_coordinator(leader=1)


def test_a_broker_loses_its_session_and_comes_back(cluster: odradek.Cluster) -> None:
    cluster.create_topic(TOPIC)
    leader = cluster.await_leader(TOPIC)
    epoch = cluster.describe_topics()[0]["partitions"][0]["leader_epoch"]
    cluster.expire_session(leader)

    def epoch_now() -> int:
        now: int = cluster.describe_topics()[0]["partitions"][0]["leader_epoch"]
        return now

    eventually("another epoch", epoch_now, lambda now: now > epoch)
    cluster.await_isr(TOPIC, cluster.brokers, within=PATIENCE_S)
    assert [each["name"] for each in cluster.describe_topics()] == [TOPIC]
