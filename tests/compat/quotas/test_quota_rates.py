"""Measurements of every kind of quota: two clients of a user together get the quota, and another user is not slowed.

The default run uses small windows, the slow one Kafka's.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import pytest

from bench.processes import cpu_s
from protocol.errors import ErrorCode
from protocol.messages.api_versions import ApiVersionsRequest
from protocol.messages.metadata import MetadataRequest
from protocol.messages.security import SaslAuthenticateRequest, SaslHandshakeRequest
from protocol.messages.topics import CreatePartitionsRequest
from tests.kit.broker_process import BrokerProcess, free_port
from tests.kit.due import due
from tests.kit.scraping import scrape
from tests.kit.wire_client import ConnectionClosed, WireClient
from tests.kit.wire_requests import fetch, new_topic, produce
from tests.parity.limited_clients import Parts, alter_request

SIZE: Final = 10_000
"""Bytes of a record."""
ASKED: Final = 300
"""Topics requested at once: about a millisecond of the event loop."""
FREE: Final = "free"
FREE_PER_S: Final = 20
"""The request rate of the user without a quota."""
MOST_TIMES: Final = 5
"""The limit of measurements until one fits: on a busy machine clients use less, and make up for it later."""


class Scale(NamedTuple):
    """quota.window.num, and how long rates are measured."""

    samples: int
    measured_s: int


SMALL = pytest.param(Scale(3, 5), id="small windows")
AS_IN_KAFKA = pytest.param(Scale(11, 30), id="kafka's windows", marks=pytest.mark.slow)
RATES, TIME, CONNECTIONS = "rates", "time", "connections"
LONG_TODAY: Final = due((RATES, TIME, CONNECTIONS))
"""Measured with Kafka's windows today: each takes most of a minute."""


def scales(measured: str) -> pytest.MarkDecorator:
    """Small windows every day; Kafka's windows on the days when it is the turn of `measured`."""
    return pytest.mark.parametrize("scale", [SMALL, *[AS_IN_KAFKA] * (measured in LONG_TODAY)], indirect=True)


class Broker(NamedTuple):
    """The addresses of a broker that authenticates users."""

    plain: str
    sasl: str
    metrics_port: int
    pid: int

    def connect(self, user: str, client_id: str) -> WireClient:
        """A client authenticated as that user; a user's password is the name."""
        client = at(self.sasl, client_id)
        client.ask(SaslHandshakeRequest(mechanism="PLAIN"), 1)
        answer: Any = client.ask(SaslAuthenticateRequest(auth_bytes=f"\0{user}\0{user}".encode()), 2)
        assert answer.error_code == ErrorCode.NONE, answer
        return client

    def admin(self) -> WireClient:
        """A client without a quota."""
        return at(self.plain, "admin")


def at(address: str, client_id: str) -> WireClient:
    host, _, port = address.rpartition(":")
    return WireClient(host, int(port), client_id)


def write(client: WireClient, topic: str, _number: int) -> tuple[float, int]:
    answer: Any = client.ask(produce(topic, [b"x" * SIZE], 1), 9)
    assert answer.responses[0].partition_responses[0].error_code == ErrorCode.NONE, answer
    return SIZE, answer.throttle_time_ms


def read(client: WireClient, topic: str, _number: int) -> tuple[float, int]:
    request = fetch(topic, 0)
    request.max_bytes = SIZE
    answer: Any = client.ask(request, 11)
    return sum(len(part.partitions[0].records or b"") for part in answer.responses), answer.throttle_time_ms


def grow(client: WireClient, topic: str, number: int) -> tuple[float, int]:
    wanted = CreatePartitionsRequest.CreatePartitionsTopic(name=topic, count=1 + number, assignments=None)
    request = CreatePartitionsRequest(topics=[wanted], timeout_ms=30_000, validate_only=False)
    answer: Any = client.ask(request, 2)
    assert answer.results[0].error_code == ErrorCode.NONE, answer
    return 1, answer.throttle_time_ms


def ask_much(client: WireClient, topic: str, _number: int) -> tuple[float, int]:
    """Send requests that use the broker's time, which only the broker measures."""
    names = [MetadataRequest.MetadataRequestTopic(name=f"{topic}-{number}") for number in range(ASKED)]
    answer: Any = client.ask(MetadataRequest(topics=names, allow_auto_topic_creation=False), 9)
    return 0, answer.throttle_time_ms


class Kind(NamedTuple):
    """A kind of quota, its limit and its use; `metric` shows the rate."""

    key: str
    limit: float
    use: Callable[[WireClient, str, int], tuple[float, int]]
    metric: str


KINDS: Final = {
    "writer": Kind("producer_byte_rate", 200_000, write, "kafka_server_produce_byte_rate"),
    "reader": Kind("consumer_byte_rate", 200_000, read, "kafka_server_fetch_byte_rate"),
    "grower": Kind("controller_mutation_rate", 10, grow, "kafka_server_controllermutation_mutation_rate"),
}
"""Kinds of quotas, by the user who has them."""
TIMED: Final = {"asker": Kind("request_percentage", 10, ask_much, "kafka_server_request_request_time")}
CLIENTS: Final = ("one", "other")


class Traffic:
    """Two clients of each user, and one without a quota; each user's usage, and each client's throttle time.

    At first the clients limit their rate themselves: a burst would be repeated whenever it leaves the window.
    """

    def __init__(self, broker: Broker, kinds: Mapping[str, Kind], paced_s: float) -> None:
        self.used: Counter[str] = Counter()
        self.throttled: Counter[tuple[str, str]] = Counter()
        self.longest_wait_s = 0.0
        self.began_s = time.monotonic()
        self._broker = broker
        self._paced_s = paced_s
        self._ended = threading.Event()
        self._threads = [
            threading.Thread(target=self._work, args=(user, kinds[user], client))
            for user in kinds
            for client in CLIENTS
        ]
        self._threads.append(threading.Thread(target=self._work_freely))

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def _work(self, user: str, kind: Kind, client_id: str) -> None:
        number = 0
        with self._broker.connect(user, client_id) as client:
            while not self._ended.is_set():
                elapsed_s = time.monotonic() - self.began_s
                if elapsed_s < self._paced_s and self.used[user] > kind.limit * elapsed_s:
                    self._ended.wait(0.02)
                    continue
                number += 1
                used, throttle_ms = kind.use(client, topic_of(user, client_id), number)
                self.used[user] += used
                self.throttled[user, client_id] += throttle_ms

    def _work_freely(self) -> None:
        with self._broker.connect(FREE, FREE) as client:
            while not self._ended.wait(1 / FREE_PER_S):
                asked_s = time.monotonic()
                used, throttle_ms = write(client, FREE, 0)
                self.longest_wait_s = max(self.longest_wait_s, time.monotonic() - asked_s)
                self.used[FREE] += used
                self.throttled[FREE, FREE] += throttle_ms


def topic_of(user: str, client_id: str) -> str:
    """A separate topic for each client."""
    return f"{user}-{client_id}"


@pytest.fixture
def scale(request: pytest.FixtureRequest) -> Scale:
    asked: Scale = request.param
    return asked


@pytest.fixture
def broker(tmp_path: Path, scale: Scale) -> Iterator[Broker]:
    """A broker whose users have the quotas of `KINDS`."""
    plain, sasl, port = (free_port() for _ in range(3))
    users = " ".join(f'user_{user}="{user}"' for user in (*KINDS, *TIMED, FREE))
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    settings = {
        "listeners": f"PLAINTEXT://127.0.0.1:{plain},SASL_PLAINTEXT://127.0.0.1:{sasl}",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": f"{module} required {users};",
        "quota.window.num": str(scale.samples),
        "controller.quota.window.num": str(scale.samples),
        "metrics.listener": f"127.0.0.1:{port}",
    }
    process = BrokerProcess(tmp_path, settings)
    process.address = f"127.0.0.1:{plain}"
    process.start()
    broker = Broker(process.address, f"127.0.0.1:{sasl}", port, process.pid)
    with broker.admin() as admin:
        for topic in (FREE, *(topic_of(user, client) for user in KINDS for client in CLIENTS)):
            admin.ask(new_topic(topic), 7)
        for client_id in CLIENTS:
            write(admin, topic_of("reader", client_id), 0)
        set_quotas(admin, *(({"user": user}, kind.key, kind.limit) for user, kind in (KINDS | TIMED).items()))
    yield broker
    assert process.stop() == 0


def set_quotas(admin: WireClient, *entries: tuple[Parts, str, float]) -> None:
    answer: Any = admin.ask(alter_request(*((parts, {key: limit}) for parts, key, limit in entries)), 1)
    assert not any(entry.error_code for entry in answer.entries), answer


@scales(RATES)
def test_users_have_the_rate_of_their_quota(broker: Broker, scale: Scale) -> None:
    with Traffic(broker, KINDS, 2.0 * scale.samples) as traffic:
        time.sleep(2 * scale.samples + 1)
        rates: dict[str, list[float]] = {user: [] for user in KINDS}
        for _ in range(MOST_TIMES):
            before = {user: (traffic.used[user], time.monotonic()) for user in KINDS}
            time.sleep(scale.measured_s)
            for user, (use, began_s) in before.items():
                now_s = time.monotonic()
                rates[user].append((traffic.used[user] - use) / (now_s - began_s))
                most = KINDS[user].limit * (now_s - traffic.began_s + scale.samples)
                assert traffic.used[user] < 1.05 * most
            print({user: [round(rate, 2) for rate in found] for user, found in rates.items()})
            if all(any(fits(rate, KINDS[user].limit) for rate in found) for user, found in rates.items()):
                break
        else:
            pytest.fail(f"the rates were {rates}")
        samples = scrape(broker.metrics_port)
        elapsed_s = time.monotonic() - traffic.began_s
    assert all(traffic.throttled[user, client] for user in KINDS for client in CLIENTS), "both have to wait"
    assert traffic.throttled[FREE, FREE] == 0
    assert traffic.used[FREE] > SIZE * FREE_PER_S * elapsed_s / 2
    print(f"the user without a quota waited {traffic.longest_wait_s * 1000:.0f} ms at most")
    for user, kind in KINDS.items():
        shown = samples[kind.metric, (("client_id", ""), ("user", user))]
        assert shown == pytest.approx(kind.limit, rel=0.3), user


def fits(rate: float, limit: float) -> bool:
    """Whether a rate matches the quota."""
    return rate == pytest.approx(limit, rel=0.05)


@scales(TIME)
def test_users_have_the_time_of_their_quota(broker: Broker, scale: Scale) -> None:
    ((asker, kind),) = TIMED.items()
    sample = (("client_id", ""), ("user", asker))
    with Traffic(broker, TIMED, 0) as traffic:
        time.sleep(2 * scale.samples)
        for _ in range(MOST_TIMES):
            shown, began_s, used_s = [], time.monotonic(), cpu_s(broker.pid)
            while time.monotonic() < began_s + scale.measured_s:
                shown.append(scrape(broker.metrics_port)[kind.metric, sample])
                time.sleep(0.1)
            mean = sum(shown) / len(shown)
            cpu = 100 * (cpu_s(broker.pid) - used_s) / (time.monotonic() - began_s)
            print(f"{mean:.2f} % of the time, of {kind.limit} %; the process used {cpu:.2f} %")
            if fits(mean, kind.limit):
                break
        else:
            pytest.fail(f"{kind.limit} % of the time were allowed, and it was {mean}")
    assert cpu < 2 * kind.limit, "what the user's requests cost is what is counted"
    assert all(traffic.throttled[asker, client] for client in CLIENTS), "both have to wait"
    assert traffic.throttled[FREE, FREE] == 0


@scales(CONNECTIONS)
def test_connections_have_the_rate_of_their_quota(broker: Broker, scale: Scale) -> None:
    limit = 20
    with broker.admin() as admin:
        set_quotas(admin, ({"ip": "127.0.0.1"}, "connection_creation_rate", limit))
        began_s, served, rates = time.monotonic(), 0, []
        counted_from, served_before = began_s + 2 * scale.samples, 0
        while len(rates) < MOST_TIMES and not (rates and fits(rates[-1], limit)):
            now_s = time.monotonic()
            if now_s < counted_from and served > limit * (now_s - began_s):
                time.sleep(0.01)
                continue
            if now_s < counted_from:
                served_before = served
            elif now_s > counted_from + scale.measured_s:
                rates.append((served - served_before) / (now_s - counted_from))
                counted_from, served_before = now_s, served
            served += is_served(broker.plain)
        print(rates)
        assert fits(rates[-1], limit)


def is_served(address: str) -> bool:
    """Whether a new connection is served; one above the limit is closed after a while."""
    with at(address, "comes and goes") as client:
        try:
            client.ask(ApiVersionsRequest(), 0)
        except ConnectionClosed:
            return False
    return True
