"""The verbs that a single broker and a cluster share: topics, records, groups, and waiting for them."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self, TypeVar

from odradek.control import Control, ExpectationError, Header, OdradekError, Record
from odradek.processes import Snapshot
from odradek.security_options import Security

T = TypeVar("T")

PERIOD_S = 0.01
"""How often a condition is looked at while a test waits for it."""
WITHIN_S = 10.0
"""How long a test waits for a condition unless it says otherwise."""


class KafkaUnderTest(ABC):
    """A broker or a cluster; it runs from `start` to `stop`, or in a `with` block."""

    _security: Security

    def __init__(self) -> None:
        self._replacing = threading.Lock()
        """Is held by `reset`, `snapshot` and `restore`."""

    @abstractmethod
    def start(self) -> Self:
        """Start it; returns it when it serves. Raises OdradekError with the reason of a failed start."""

    @abstractmethod
    def stop(self) -> None:
        """End it at once, and delete its data."""

    def __enter__(self) -> Self:
        return self if self.is_running else self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    @abstractmethod
    def prepare_reset(self) -> None:
        """Start what replaces it at the next `reset` in the background."""

    @abstractmethod
    def reset(self) -> None:
        """Replace it by a new one, on other ports; the old ones refuse connections when this returns."""

    @abstractmethod
    def snapshot(self) -> Snapshot:
        """Save its state for `restore`."""

    @abstractmethod
    def restore(self, snapshot: Snapshot) -> None:
        """Replace it by a new one that is as it was at `snapshot`."""

    @contextmanager
    def _exclusively(self, doing: str) -> Iterator[None]:
        if not self._replacing.acquire(blocking=False):
            raise OdradekError(f"{doing} during another reset, snapshot or restore of this broker: wait for its end")
        try:
            yield
        finally:
            self._replacing.release()

    @property
    @abstractmethod
    def is_running(self) -> bool:
        """Whether it runs, and is not paused."""

    @abstractmethod
    def clear_faults(self) -> None:
        """Remove all faults."""

    @abstractmethod
    def check_faults(self) -> None:
        """Raise ExpectationError if a fault hit nothing, unless it is optional."""

    @abstractmethod
    def report(self) -> str:
        """The last requests, the groups and the end of the log, for a person who looks at a failed test."""

    @property
    @abstractmethod
    def bootstrap_servers(self) -> str:
        """The address for clients."""

    def client_config(self, library: str) -> dict[str, Any]:
        """The settings for a client library: `aiokafka`, `confluent` (librdkafka), `java`,
        `kafka-python`, `kafkajs` or `spark`.
        """
        return self._security.client_config(library, self.bootstrap_servers)

    def create_user(self, name: str, password: str, *, mechanism: str = "SCRAM-SHA-512") -> None:
        """Create a user who logs in by a SCRAM mechanism, or change the password."""
        self._ask("POST", "users", {"name": name, "password": password, "mechanism": mechanism})

    # -- topics and records --------------------------------------------------------------------------------------------

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        *,
        replication_factor: int | None = None,
        config: Mapping[str, object] | None = None,
    ) -> Topic:
        """Create a topic. Raises KafkaError."""
        texts = {key: str(value) for key, value in (config or {}).items()}
        body = {"name": name, "partitions": partitions, "config": texts}
        if replication_factor is not None:
            body["replication_factor"] = replication_factor
        self._ask("POST", "topics", body)
        return Topic(self, name)

    def delete_topic(self, name: str) -> None:
        """Delete a topic; its records are gone when this returns."""
        self._ask("DELETE", f"topics/{name}")

    def alter_config(self, config: Mapping[str, object], *, topic: str | None = None) -> None:
        """Change the configuration of a topic, or that of the broker, such as `{"max.connections.per.ip": 5}`.

        None restores the default of a key. In a cluster, all brokers that run are changed. Raises KafkaError.
        """
        self._ask("POST", "configs", {"topic": topic, "config": dict(config)})

    def topic(self, name: str) -> Topic:
        """A topic by its name, whether it exists or not."""
        return Topic(self, name)

    def topics(self) -> list[str]:
        """The names of the topics, without Kafka's internal ones."""
        return [each["name"] for each in self.describe_topics()]

    @abstractmethod
    def describe_topics(self) -> list[dict[str, Any]]:
        """The topics with their partitions: leader, replicas, ISR, earliest and latest offset."""

    @abstractmethod
    def records(
        self, topic: str, partition: int | None = None, *, first: int = 0, isolation: str = "read_committed"
    ) -> list[Record]:
        """The records of a topic from the offset `first` on, by partition and offset, without a consumer."""

    def produce(
        self,
        topic: str,
        value: bytes | str | None,
        *,
        key: bytes | str | None = None,
        partition: int = 0,
        headers: Sequence[Header] = (),
        timestamp: int | None = None,
    ) -> int:
        """Append one record with acks=all; returns its offset."""
        record: dict[str, Any] = {"key": key, "value": value, "headers": headers}
        if timestamp is not None:
            record["timestamp"] = timestamp
        return self._append(topic, partition, [record])

    # -- groups --------------------------------------------------------------------------------------------------------

    @abstractmethod
    def groups(self) -> list[dict[str, Any]]:
        """The groups with their state, their members' partitions, and their committed offsets."""

    def group(self, group_id: str) -> dict[str, Any] | None:
        """One group, or None."""
        return next((each for each in self.groups() if each["group_id"] == group_id), None)

    def lag(self, group_id: str) -> dict[tuple[str, int], int]:
        """Records between the committed offset and the end, for each partition with a committed offset."""
        ends = {
            (topic["name"], each["partition"]): each["latest"]
            for topic in self.describe_topics()
            for each in topic["partitions"]
        }
        return {key: ends[key] - offset for key, offset in self._committed(group_id).items() if key in ends}

    def _committed(self, group_id: str) -> dict[tuple[str, int], int]:
        group = self.group(group_id)
        offsets = [] if group is None else group["offsets"]
        return {(each["topic"], each["partition"]): each["offset"] for each in offsets}

    def await_assigned(self, group_id: str, *, within: float = WITHIN_S) -> dict[str, Any]:
        """Wait until the group is stable and every partition of its topics has a member; returns the group."""

        def look() -> dict[str, Any] | None:
            return self.group(group_id)

        def is_assigned(group: dict[str, Any] | None) -> bool:
            if group is None or group["state"] != "Stable":
                return False
            held = [(each["topic"], each["partition"]) for member in group["members"] for each in member["partitions"]]
            topics = {topic for topic, _ in held}
            partitions = {each["name"]: len(each["partitions"]) for each in self.describe_topics()}
            return bool(held) and len(held) == sum(partitions.get(topic, 0) for topic in topics)

        group = wait_until(look, is_assigned, within)
        if group is None or not is_assigned(group):
            raise ExpectationError(f"group {group_id} is not assigned after {within} s: {shown_group(group)}")
        return group

    def await_committed(
        self, group_id: str, topic: str, offset: int, *, partition: int = 0, within: float = WITHIN_S
    ) -> None:
        """Wait until the group has committed this offset, or a later one."""

        def look() -> int:
            return self._committed(group_id).get((topic, partition), -1)

        committed = wait_until(look, lambda found: found >= offset, within)
        if committed < offset:
            reached = "nothing" if committed < 0 else f"offset {committed}"
            raise ExpectationError(
                f"group {group_id} has committed {reached} of {topic}-{partition} after {within} s, not {offset}"
            )

    def await_lag(self, group_id: str, at_most: int = 0, *, within: float = WITHIN_S) -> None:
        """Wait until the group lags by at most so many records on all its partitions together."""

        def look() -> dict[tuple[str, int], int]:
            return self.lag(group_id)

        def is_met(lags: dict[tuple[str, int], int]) -> bool:
            return bool(lags) and sum(lags.values()) <= at_most

        lags = wait_until(look, is_met, within)
        if not is_met(lags):
            shown = ", ".join(f"{topic}-{partition}: {lag}" for (topic, partition), lag in lags.items())
            raise ExpectationError(
                f"group {group_id} lags after {within} s ({shown or 'it has committed nothing'}), expected {at_most}"
            )

    # -- faults and requests -------------------------------------------------------------------------------------------

    def fail(self, api: str, error: str, *, times: int | None = 1, optional: bool = False, **options: Any) -> Fault:
        """Answer the next `times` requests of `api` (None: all) with an error, both by Kafka's names.

        Selectors: `topic`, `partition`, `group`, `transactional_id`, `client_id`, `principal`, `version`, `listener`.
        Other partitions of a request are served. `after=True` lets the request take effect first, which is the default
        for errors named so (NOT_ENOUGH_REPLICAS_AFTER_APPEND). `skip=n` lets n requests pass before; `probability=p`
        hits each with this probability, from `seed`. A fault that hit nothing fails its test unless `optional`.
        """
        return self._fault(api, "error", error=error, times=times, optional=optional, **options)

    def delay(self, api: str, seconds: float, *, times: int | None = 1, **options: Any) -> Fault:
        """Delay requests of `api`, or with `after=True` their answers. For the options, see `fail`."""
        return self._fault(api, "delay", delay_ms=round(seconds * 1000), times=times, **options)

    def hang(self, api: str, *, times: int | None = 1, **options: Any) -> Fault:
        """Never answer requests of `api`. For the options, see `fail`."""
        return self._fault(api, "hang", times=times, **options)

    def close_connection(self, api: str, *, times: int | None = 1, **options: Any) -> Fault:
        """Close the connection instead of answering `api`. For the options, see `fail`."""
        return self._fault(api, "close", times=times, **options)

    def throttle(self, api: str, seconds: float, *, times: int | None = 1, **options: Any) -> Fault:
        """Answer `api` with this throttle time, which well-behaved clients wait. For the options, see `fail`."""
        return self._fault(api, "throttle", delay_ms=round(seconds * 1000), times=times, **options)

    def send_half(self, api: str, *, times: int | None = 1, **options: Any) -> Fault:
        """Send half of the answer to `api`, and close the connection. For the options, see `fail`."""
        return self._fault(api, "half", times=times, **options)

    def answer_twice(self, api: str, *, times: int | None = 1, **options: Any) -> Fault:
        """Send the answer to `api` twice. For the options, see `fail`."""
        return self._fault(api, "twice", times=times, **options)

    def double_batches(self, topic: str, *, times: int | None = 1, **options: Any) -> Fault:
        """Append the batches of the next Produce to `topic` twice, as if a producer without idempotence had sent them
        again. Batches of transactions are never doubled. For the options, see `fail`.
        """
        return self._fault("Produce", "double", topic=topic, times=times, **options)

    def corrupt(self, topic: str, *, times: int | None = 1, **options: Any) -> Fault:
        """Flip a byte in the next records of `topic` that consumers fetch; those that check the CRC notice. The log
        stays intact. For the options, see `fail`.
        """
        return self._fault("Fetch", "corrupt", topic=topic, times=times, **options)

    def unknown_schema(self, topic: str, *, times: int | None = 1, **options: Any) -> Fault:
        """Change the schema id in the next records of `topic` that consumers fetch to 2147483647: bytes 1 to 4 of each
        value that begins with a zero byte. The log stays intact. For the options, see `fail`.
        """
        return self._fault("Fetch", "unknown_schema", topic=topic, times=times, **options)

    @abstractmethod
    def _fault(self, api: str, action: str, **options: Any) -> Fault:
        """Set a fault."""

    @abstractmethod
    def requests(self, api: str | None = None, *, client_id: str | None = None) -> list[dict[str, Any]]:
        """The last requests of clients with their answers, oldest first: `api`, `version`, `client_id`, `request`,
        `response`, `errors`, `duration_ms`.
        """

    # -- waiting -------------------------------------------------------------------------------------------------------

    @contextmanager
    def expect(self, topic: str, count: int = 1, *, within: float = WITHIN_S) -> Iterator[list[Record]]:
        """Wait at the end of the block until `count` records have been appended to `topic` in it.

        The list holds them afterwards. Raises ExpectationError if there are fewer after `within` seconds, or more.
        """
        before = {(each.partition, each.offset) for each in self._records_if_any(topic)}
        got: list[Record] = []
        yield got

        def look() -> list[Record]:
            return [each for each in self._records_if_any(topic) if (each.partition, each.offset) not in before]

        found = wait_until(look, lambda records: len(records) >= count, within)
        if len(found) != count:
            values = [each.value for each in found]
            raise ExpectationError(f"expected {count} records in {topic} within {within} s, got {len(found)}: {values}")
        got.extend(found)

    def _records_if_any(self, topic: str) -> list[Record]:
        return self.records(topic) if topic in self.topics() else []

    # -- requests ------------------------------------------------------------------------------------------------------

    @abstractmethod
    def _ask(self, method: str, path: str, body: object = None) -> Any:
        """Send a request of the control API to a broker that may answer it."""

    @abstractmethod
    def _append(self, topic: str, partition: int, records: Iterable[Mapping[str, Any]]) -> int:
        """Append records; returns the offset of the first one."""


class Fault:
    """A fault that is set at a broker."""

    def __init__(self, control: Control, fault_id: int) -> None:
        self._control = control
        self.id = fault_id

    @property
    def hits(self) -> int:
        """The number of requests that it has hit."""
        hits: int = self.described()["hits"]
        return hits

    def remove(self) -> None:
        """Remove it; requests are served again."""
        self._control.ask("DELETE", f"faults/{self.id}")

    def described(self) -> dict[str, Any]:
        """The fault with its selectors, its hits, and the nearest request without one."""
        for each in self._control.ask("GET", "faults")["faults"]:
            if each["id"] == self.id:
                described: dict[str, Any] = each
                return described
        raise OdradekError(f"fault {self.id} was removed")


def unused_fault(fault: Mapping[str, Any]) -> str:
    """A message about a fault that hit nothing, with the request that came nearest."""
    selectors = {
        name: value
        for name, value in fault.items()
        if name not in {"id", "api", "action", "error", "times", "hits", "optional", "nearest"}
    }
    what = f"{fault['action']} {fault.get('error', '')}".strip()
    nearest = fault["nearest"]
    seen = "no request of this API came" if nearest is None else f"nearest: {nearest}"
    return f"the fault {what!r} for {fault['api']} {selectors or ''} hit nothing; {seen}"


class Topic:
    """A topic of a broker or a cluster."""

    def __init__(self, kafka: KafkaUnderTest, name: str) -> None:
        self._kafka = kafka
        self.name = name

    def __repr__(self) -> str:
        return f"Topic({self.name!r})"

    def produce(self, values: Iterable[bytes | str | None], *, partition: int = 0) -> int:
        """Append records with these values in one batch; returns the offset of the first one."""
        return self._kafka._append(self.name, partition, [{"value": value} for value in values])

    def records(self, partition: int | None = None, *, first: int = 0) -> list[Record]:
        """See `KafkaUnderTest.records`."""
        return self._kafka.records(self.name, partition, first=first)

    def earliest(self, partition: int = 0) -> int:
        """The first offset that consumers can read."""
        return self._offset(partition, "earliest")

    def latest(self, partition: int = 0) -> int:
        """The offset of the next record that consumers will see (the high watermark)."""
        return self._offset(partition, "latest")

    def _offset(self, partition: int, which: str) -> int:
        for topic in self._kafka.describe_topics():
            if topic["name"] == self.name:
                described = topic["partitions"][partition]
                if which not in described:
                    raise OdradekError(f"no broker leads {self.name}-{partition}: {described}")
                offset: int = described[which]
                return offset
        raise OdradekError(f"no topic {self.name!r}; there are: {', '.join(self._kafka.topics()) or 'none'}")


def wait_until(look: Callable[[], T], is_met: Callable[[T], bool], within_s: float) -> T:
    """The first value of `look` that meets the condition, or its last value when the time is over."""
    deadline = time.monotonic() + within_s
    while True:
        found = look()
        if is_met(found) or time.monotonic() >= deadline:
            return found
        time.sleep(PERIOD_S)


def shown_group(group: Mapping[str, Any] | None) -> str:
    """A group in words."""
    if group is None:
        return "the group does not exist"
    members = [f"{each['client_id']} {each['partitions']}" for each in group["members"]]
    return f"{group['state']}, members: {', '.join(members) or 'none'}"
