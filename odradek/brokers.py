"""`Broker`: a real broker in a process of its own, for a test.

with odradek.Broker() as broker:
    app = start_app(broker.bootstrap_servers)
"""

from __future__ import annotations

import secrets
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar

from odradek.control import Control, ExpectationError, Header, OdradekError, Record
from odradek.processes import Launcher

T = TypeVar("T")

PERIOD_S = 0.01
"""How often a condition is looked at while a test waits for it."""
WITHIN_S = 10.0
"""How long a test waits for a condition unless it says otherwise."""

REPORTED_REQUESTS = 20
REPORTED_LINES = 10

DEFAULTS: Mapping[str, str] = {
    "broker.id": "0",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
}
"""Where a broker for tests differs from Kafka's defaults; the keys of `config` win."""

CONTROL_PRINCIPAL = "User:odradek-control"
"""The principal of the control API."""


class _Process(NamedTuple):
    """A running broker process."""

    pid: int
    port: int
    control: Control
    directory: Path


class Broker:
    """A broker that runs from `start` to `stop`, or in a `with` block.

    `config` are keys of server.properties. The data is in a temporary directory, deleted at the end.
    """

    def __init__(self, *, config: Mapping[str, object] | None = None) -> None:
        self._config = {name: str(value) for name, value in (config or {}).items()}
        self._launcher: Launcher | None = None
        self._process: _Process | None = None
        self._spare: tuple[int, Path, str] | None = None
        """The command that starts the broker after the next `reset`, its directory and its token."""

    # -- life ----------------------------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Start the broker; returns it when it serves. Raises OdradekError with the reason of a failed start."""
        if self._process is not None:
            raise OdradekError("the broker runs already")
        self._launcher = Launcher.shared()
        self._process = self._started(self._begin())
        return self

    def stop(self) -> None:
        """End the broker at once, and delete its data."""
        if self._process is not None and self._launcher is not None:
            self._end(self._process)
        if self._spare is not None:
            self._end(self._started(self._spare))
        self._process = self._spare = None

    def __enter__(self) -> Self:
        return self if self._process is not None else self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def prepare_reset(self) -> None:
        """Start the broker of the next `reset` in the background."""
        if self._spare is None:
            self._spare = self._begin()

    def reset(self) -> None:
        """Replace the broker by a new one: without topics, groups, users and settings, on another port.

        The old port refuses connections when this returns, so that a client left over from a test can do nothing.
        """
        old = self._running
        spare, self._spare = self._spare, None
        self._process = self._started(spare or self._begin())
        self._end(old)

    def kill(self) -> None:
        """End the process as a power cut would (SIGKILL); the data stays for `restart`."""
        self._signal(self._running.pid, signal.SIGKILL, wait=True)

    def restart(self) -> None:
        """Start a killed broker again, on its data and its port."""
        old = self._running
        old.control.close()
        self._process = self._started(self._begin(old.directory, old.port))

    def pause(self) -> None:
        """Stop the process (SIGSTOP): connections stay open, and nothing answers."""
        self._signal(self._running.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let a paused process go on."""
        self._signal(self._running.pid, signal.SIGCONT)

    @property
    def is_running(self) -> bool:
        """Whether the broker runs."""
        return self._process is not None

    # -- where it is ---------------------------------------------------------------------------------------------------

    @property
    def bootstrap_servers(self) -> str:
        """The address for clients."""
        return f"127.0.0.1:{self._running.port}"

    @property
    def clock(self) -> Clock:
        """The broker's time."""
        return Clock(self)

    @property
    def control_url(self) -> str:
        """The address of the control API, which other languages use."""
        return self._control.url

    @property
    def control_token(self) -> str:
        """The bearer token of the control API."""
        return self._control.token

    # -- topics and records --------------------------------------------------------------------------------------------

    def create_topic(self, name: str, partitions: int = 1, *, config: Mapping[str, object] | None = None) -> Topic:
        """Create a topic. Raises KafkaError."""
        texts = {key: str(value) for key, value in (config or {}).items()}
        body = {"name": name, "partitions": partitions, "config": texts}
        self._control.ask("POST", "topics", body)
        return Topic(self, name)

    def delete_topic(self, name: str) -> None:
        """Delete a topic; its records are gone when this returns."""
        self._control.ask("DELETE", f"topics/{name}")

    def topic(self, name: str) -> Topic:
        """A topic by its name, whether it exists or not."""
        return Topic(self, name)

    def topics(self) -> list[str]:
        """The names of the topics, without Kafka's internal ones."""
        return [each["name"] for each in self.describe_topics()]

    def describe_topics(self) -> list[dict[str, Any]]:
        """The topics with their partitions: leader, replicas, ISR, earliest and latest offset."""
        topics: list[dict[str, Any]] = self._control.ask("GET", "topics")["topics"]
        return topics

    def records(
        self, topic: str, partition: int | None = None, *, first: int = 0, isolation: str = "read_committed"
    ) -> list[Record]:
        """The records of a topic from the offset `first` on, by partition and offset, without a consumer."""
        return self._control.records(topic, partition, first, isolation)

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
        """Append one record; returns its offset."""
        record: dict[str, Any] = {"key": key, "value": value, "headers": headers}
        if timestamp is not None:
            record["timestamp"] = timestamp
        return self._control.append(topic, partition, [record])

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
        """Close the connection in place of an answer to `api`. For the options, see `fail`."""
        return self._fault(api, "close", times=times, **options)

    def throttle(self, api: str, seconds: float, *, times: int | None = 1, **options: Any) -> Fault:
        """Answer `api` with this throttle time, which well-behaved clients wait. For the options, see `fail`."""
        return self._fault(api, "throttle", delay_ms=round(seconds * 1000), times=times, **options)

    def _fault(self, api: str, action: str, **options: Any) -> Fault:
        described = self._control.ask("POST", "faults", {"api": api, "action": action, **options})
        return Fault(self._control, described["id"])

    def faults(self) -> list[dict[str, Any]]:
        """The faults that are set, with their hits, and the request that came nearest to one without."""
        faults: list[dict[str, Any]] = self._control.ask("GET", "faults")["faults"]
        return faults

    def clear_faults(self) -> None:
        """Remove all faults."""
        self._control.ask("DELETE", "faults")

    def check_faults(self) -> None:
        """Raise ExpectationError if a fault hit nothing, unless it is optional."""
        unused = [each for each in self.faults() if not each["hits"] and not each["optional"]]
        if unused:
            raise ExpectationError("\n".join(map(_unused, unused)))

    def requests(self, api: str | None = None, *, client_id: str | None = None) -> list[dict[str, Any]]:
        """The last requests of clients with their answers, oldest first: `api`, `version`, `client_id`, `request`,
        `response`, `errors`, `duration_ms`.
        """
        found: list[dict[str, Any]] = self._control.ask("GET", "requests", api=api, client_id=client_id)["requests"]
        return found

    def report(self) -> str:
        """The last requests, the groups and the end of the log, for a person who looks at a failed test."""
        try:
            requests = [_shown_request(each) for each in self.requests()[-REPORTED_REQUESTS:]]
            groups = [f"  {each['group_id']}: {_shown_group(each)}" for each in self.groups()]
        except OdradekError as error:
            requests, groups = [f"  {error}"], []
        log = (self._running.directory / "broker.log").read_text(encoding="utf-8", errors="replace").splitlines()
        warnings = [f"  {line}" for line in log if " WARN " in line or " ERROR " in line][-REPORTED_LINES:]
        parts = (("last requests", requests), ("groups", groups), ("warnings and errors", warnings))
        return "\n".join(f"{name}:\n" + "\n".join(lines) for name, lines in parts if lines)

    # -- groups --------------------------------------------------------------------------------------------------------

    def groups(self) -> list[dict[str, Any]]:
        """The groups with their state, their members' partitions, and their committed offsets."""
        groups: list[dict[str, Any]] = self._control.ask("GET", "groups")["groups"]
        return groups

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
            raise ExpectationError(f"group {group_id} is not assigned after {within} s: {_shown_group(group)}")
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

    # -- processes -----------------------------------------------------------------------------------------------------

    @property
    def _running(self) -> _Process:
        if self._process is None:
            raise OdradekError("the broker does not run: call start(), or use a with block")
        return self._process

    @property
    def _control(self) -> Control:
        return self._running.control

    def _begin(self, directory: Path | None = None, port: int = 0) -> tuple[int, Path, str]:
        """Have a broker started; `_started` waits for it."""
        assert self._launcher is not None
        where, token = directory or self._launcher.new_directory(), secrets.token_urlsafe(16)
        properties = {
            **DEFAULTS,
            "listeners": f"PLAINTEXT://127.0.0.1:{port}",
            "log.dirs": str(where / "data"),
            **self._config,
        }
        if "authorizer.class.name" in properties:
            users = [properties.get("super.users", ""), CONTROL_PRINCIPAL]
            properties["super.users"] = ";".join(filter(None, users))
        return self._launcher.request("start", directory=str(where), token=token, properties=properties), where, token

    def _started(self, begun: tuple[int, Path, str]) -> _Process:
        assert self._launcher is not None
        command_id, directory, token = begun
        reply = self._launcher.reply(command_id)
        port = next(iter(reply["ports"].values()))
        return _Process(reply["pid"], port, Control(reply["control"], token), directory)

    def _signal(self, pid: int, number: int, *, wait: bool = False) -> None:
        assert self._launcher is not None
        self._launcher.run("signal", pid=pid, signal=int(number), **{"await": wait})

    def _end(self, process: _Process) -> None:
        assert self._launcher is not None
        process.control.close()
        self._launcher.run("end", pid=process.pid)


class Clock:
    """The time of a broker, which a test moves."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def now(self) -> datetime:
        """The broker's wall clock, in UTC."""
        return datetime.fromtimestamp(self.now_ms() / 1000, UTC)

    def now_ms(self) -> int:
        """The broker's wall clock, in milliseconds since 1970."""
        now_ms: int = self._broker._control.ask("GET", "clock")["now_ms"]
        return now_ms

    def advance(
        self, seconds: float = 0, *, minutes: float = 0, hours: float = 0, days: float = 0, silent_clients: bool = False
    ) -> None:
        """Move time forth; returns when all that fell due has run.

        Clients are treated as if they had sent something until the new time: members stay in their groups, and
        connections open. With `silent_clients=True` their sessions and idle connections time out.
        """
        total_s = seconds + 60 * (minutes + 60 * (hours + 24 * days))
        self._move(advance_ms=round(total_s * 1000), silent_clients=silent_clients)

    def freeze(self) -> None:
        """Let time stand still, except for `advance`."""
        self._move(freeze=True)

    def unfreeze(self) -> None:
        """Let time go on from where it stands."""
        self._move(freeze=False)

    def at(self, moment: datetime) -> None:
        """Set the wall clock, as an administrator would; no timer notices. A datetime without zone is in UTC."""
        aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
        self._move(set_ms=round(aware.timestamp() * 1000))

    def _move(self, **how: object) -> None:
        self._broker._control.ask("POST", "clock", how)


class Fault:
    """A fault that is set at a broker."""

    def __init__(self, control: Control, fault_id: int) -> None:
        self._control = control
        self.id = fault_id

    @property
    def hits(self) -> int:
        """The number of requests that it has hit."""
        for each in self._control.ask("GET", "faults")["faults"]:
            if each["id"] == self.id:
                hits: int = each["hits"]
                return hits
        raise OdradekError(f"fault {self.id} was removed")

    def remove(self) -> None:
        """Remove it; requests are served again."""
        self._control.ask("DELETE", f"faults/{self.id}")


def _unused(fault: Mapping[str, Any]) -> str:
    selectors = {
        name: value
        for name, value in fault.items()
        if name not in {"id", "api", "action", "error", "times", "hits", "optional", "nearest"}
    }
    what = f"{fault['action']} {fault.get('error', '')}".strip()
    nearest = fault["nearest"]
    seen = "no request of this API came" if nearest is None else f"nearest: {nearest}"
    return f"the fault {what!r} for {fault['api']} {selectors or ''} hit nothing; {seen}"


def _shown_request(entry: Mapping[str, Any]) -> str:
    outcome = ", ".join(entry["errors"]) or ("ok" if entry["duration_ms"] is not None else "not answered")
    fault = "" if entry["fault"] is None else f" (fault {entry['fault']})"
    took = "" if entry["duration_ms"] is None else f" {entry['duration_ms']:.1f} ms"
    return f"  {entry['api']} v{entry['version']} {entry['client_id'] or ''}: {outcome}{fault}{took}"


def _shown_group(group: Mapping[str, Any] | None) -> str:
    if group is None:
        return "there is no such group"
    members = [f"{each['client_id']} {each['partitions']}" for each in group["members"]]
    return f"{group['state']}, members: {', '.join(members) or 'none'}"


class Topic:
    """A topic of a broker."""

    def __init__(self, broker: Broker, name: str) -> None:
        self._broker = broker
        self.name = name

    def __repr__(self) -> str:
        return f"Topic({self.name!r})"

    def produce(self, values: Iterable[bytes | str | None], *, partition: int = 0) -> int:
        """Append records with these values in one batch; returns the offset of the first one."""
        return self._broker._control.append(self.name, partition, [{"value": value} for value in values])

    def records(self, partition: int | None = None, *, first: int = 0) -> list[Record]:
        """See `Broker.records`."""
        return self._broker.records(self.name, partition, first=first)

    def earliest(self, partition: int = 0) -> int:
        """The first offset that consumers can read."""
        return self._offset(partition, "earliest")

    def latest(self, partition: int = 0) -> int:
        """The offset of the next record that consumers will see (the high watermark)."""
        return self._offset(partition, "latest")

    def _offset(self, partition: int, which: str) -> int:
        for topic in self._broker.describe_topics():
            if topic["name"] == self.name:
                offset: int = topic["partitions"][partition][which]
                return offset
        raise OdradekError(f"no topic {self.name!r}; there are: {', '.join(self._broker.topics()) or 'none'}")


def wait_until(look: Callable[[], T], is_met: Callable[[T], bool], within_s: float) -> T:
    """The first value of `look` that meets the condition, or its last value when the time is over."""
    deadline = time.monotonic() + within_s
    while True:
        found = look()
        if is_met(found) or time.monotonic() >= deadline:
            return found
        time.sleep(PERIOD_S)
