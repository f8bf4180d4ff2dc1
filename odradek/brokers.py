"""`Broker`: a real broker in a separate process, for a test.

with odradek.Broker() as broker:
    app = start_app(broker.bootstrap_servers)
"""

from __future__ import annotations

import secrets
import signal
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple, Self

from odradek.control import Control, ExpectationError, OdradekError, Record
from odradek.kafka_under_test import Fault, KafkaUnderTest, shown_group, unused_fault
from odradek.processes import Address, Launcher, Snapshot
from odradek.security_options import BROKER_USER, USER, Security

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


class State(Enum):
    """Whether the process of a broker runs."""

    RUNNING = "running"
    PAUSED = "paused"
    ENDED = "ended"


_NOT_COPIED = ("log.dir", "log.dirs", "zookeeper.connect")
"""Keys that put data where snapshots do not copy it."""


class Begun(NamedTuple):
    """A broker process that is being started."""

    command_id: int
    directory: Path
    token: str
    snapshot: Snapshot | None = None
    """The snapshot that it is started from."""


class _Process(NamedTuple):
    """A running broker process."""

    pid: int
    port: int
    ports: Mapping[str, int]
    control: Control
    directory: Path
    log: Path


class Broker(KafkaUnderTest):
    """A broker that runs from `start` to `stop`, or in a `with` block.

    `config` are keys of server.properties. With `tls`, clients need the broker's authority; with `sasl`, a mechanism
    such as SCRAM-SHA-512, they log in: `client_config` has what a client library needs. With `keep_address`, the broker
    has the same port after `reset` and `restore`, for an application that is started once. The data is in a temporary
    directory, deleted at the end.
    """

    def __init__(
        self,
        *,
        config: Mapping[str, object] | None = None,
        tls: bool = False,
        sasl: str | None = None,
        keep_address: bool = False,
    ) -> None:
        super().__init__()
        self._security = Security(tls=tls, sasl=sasl)
        self._config = {name: str(value) for name, value in (config or {}).items()}
        if keep_address and "listeners" in self._config:
            raise OdradekError("keep_address chooses a port, and so does the key listeners: leave out one of them")
        self._keeps_address = keep_address
        self._address: Address | None = None
        self._predecessors = 0
        """The number of brokers that had the address so far."""
        self._launcher: Launcher | None = None
        self._process: _Process | None = None
        self._state = State.ENDED
        self._spare: Begun | None = None
        """The broker after the next `reset`."""
        self._restored: Begun | None = None
        """The broker after the next `restore`."""

    # -- life ----------------------------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Start the broker; returns it when it serves. Raises OdradekError with the reason of a failed start."""
        if self._process is not None:
            raise OdradekError("the broker runs already")
        self._launcher = Launcher.shared()
        self._security.prepare(self._launcher)
        if self._keeps_address:
            self._address = self._launcher.new_address()
        self._replace(self._begin())
        return self

    def stop(self) -> None:
        """End the broker at once, and delete its data."""
        if self._process is not None and self._launcher is not None:
            self._end(self._process)
        for begun in (self._spare, self._restored):
            self._discard(begun)
        if self._address is not None:
            self._address.close()
        self._process = self._spare = self._restored = self._address = None
        self._state = State.ENDED

    def prepare_reset(self) -> None:
        """Start the broker of the next `reset` in the background."""
        if self._spare is None:
            self._spare = self._begin()

    def reset(self) -> None:
        """Replace the broker by a new one: without topics, groups, users and settings, on another port.

        The old port refuses connections when this returns, so that a client left over from a test can do nothing. With
        `keep_address` the port stays: the connections of all clients end, and they connect to the new broker.
        """
        with self._exclusively("reset"):
            _ = self._running
            spare, self._spare = self._spare, None
            self._replace(spare or self._begin())

    def snapshot(self) -> Snapshot:
        """Save the broker's state for `restore`: topics, records, groups, transactions, settings, users and ACLs.

        The snapshot contains everything that the broker has acknowledged, but no faults and no list of requests. Raises
        OdradekError for a broker that does not run, or is paused.
        """
        with self._exclusively("snapshot"):
            _ = self._running
            for name in _NOT_COPIED:
                if name in self._config:
                    raise OdradekError(f"remove {name} from the config: a snapshot does not copy the data there")
            if self._state is not State.RUNNING:
                before = "resume" if self._state is State.PAUSED else "restart"
                raise OdradekError(f"the broker has {self._state.value}: {before} it before you take a snapshot")
            assert self._launcher is not None
            directory = self._launcher.new_directory()
            clock = self._control.ask("POST", "snapshots", {"directory": str(directory)})
            snapshot = Snapshot(directory, self._description, clock)
            self._prepare_restore(snapshot)
            return snapshot

    def restore(self, snapshot: Snapshot) -> None:
        """Replace the broker by a new one that is as the broker was at `snapshot`, as often as you like.

        Port and clients are treated as by `reset`. The new broker's clock is as far ahead of this machine's as it was,
        and a frozen one stands where it stood. Raises OdradekError for a snapshot of a broker with other options.
        """
        with self._exclusively("restore"):
            _ = self._running
            snapshot.check(self._description)
            begun, self._restored = self._restored, None
            if begun is not None and begun.snapshot is not snapshot:
                self._discard(begun)
                begun = None
            self._replace(begun or self._begin(snapshot=snapshot))
            self._prepare_restore(snapshot)

    def _prepare_restore(self, snapshot: Snapshot) -> None:
        """Start the broker of the next `restore` in the background: it is mostly the same snapshot that is restored."""
        if self._restored is not None:
            self._discard(self._restored)
        self._restored = self._begin(snapshot=snapshot)

    @property
    def _description(self) -> str:
        """The options that must be equal for a snapshot to be restored."""
        return f"a broker with {self._security}, config={dict(sorted(self._config.items()))}"

    def kill(self) -> None:
        """End the process as a power cut would (SIGKILL); the data stays for `restart`."""
        self._signal(self._running.pid, signal.SIGKILL, wait=True)
        self._state = State.ENDED

    def shut_down(self) -> None:
        """Stop the process cleanly (SIGTERM), and wait for its end; the data stays for `restart`."""
        if self._state is State.PAUSED:
            raise OdradekError("a paused broker cannot shut down: resume it, or kill it")
        self._signal(self._running.pid, signal.SIGTERM, wait=True)
        self._state = State.ENDED

    def restart(self) -> None:
        """Start the broker again, on its data and its port. One that runs is shut down before."""
        if self._state is State.RUNNING:
            self.shut_down()
        elif self._state is State.PAUSED:
            self.kill()
        old = self._running
        old.control.close()
        self._process = self._started(self._begin(old.directory, old.port))

    def pause(self) -> None:
        """Stop the process (SIGSTOP): connections stay open, and nothing answers."""
        self._signal(self._running.pid, signal.SIGSTOP)
        self._state = State.PAUSED

    def resume(self) -> None:
        """Let a paused process go on."""
        self._signal(self._running.pid, signal.SIGCONT)
        self._state = State.RUNNING

    @property
    def state(self) -> State:
        """Whether the process runs, is paused, or has ended."""
        return self._state

    @property
    def is_running(self) -> bool:
        """Whether the broker runs, and is not paused."""
        return self._state is State.RUNNING

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
    def disk(self) -> Disk:
        """The broker's disk, which a test can fill, slow down or break."""
        return Disk(self)

    @property
    def control_url(self) -> str:
        """The address of the control API, which other languages use."""
        return self._control.url

    @property
    def control_token(self) -> str:
        """The bearer token of the control API."""
        return self._control.token

    # -- topics and records --------------------------------------------------------------------------------------------

    def describe_topics(self) -> list[dict[str, Any]]:
        """The topics with their partitions: leader, replicas, ISR, earliest and latest offset."""
        topics: list[dict[str, Any]] = self._ask("GET", "topics")["topics"]
        return topics

    def records(
        self, topic: str, partition: int | None = None, *, first: int = 0, isolation: str = "read_committed"
    ) -> list[Record]:
        """The records of a topic from the offset `first` on, by partition and offset, without a consumer."""
        return self._control.records(topic, partition, first, isolation)

    def groups(self) -> list[dict[str, Any]]:
        """The groups with their state, their members' partitions, and their committed offsets."""
        groups: list[dict[str, Any]] = self._ask("GET", "groups")["groups"]
        return groups

    def _ask(self, method: str, path: str, body: object = None) -> Any:
        return self._control.ask(method, path, body)

    def _append(self, topic: str, partition: int, records: Iterable[Mapping[str, Any]]) -> int:
        return self._control.append(topic, partition, records)

    def compact(self, topic: str | None = None) -> None:
        """Compact a topic now, or all topics with cleanup.policy=compact, however little of them is dirty.

        The last record of each key is left. Tombstones stay for delete.retention.ms, as in Kafka.
        """
        self._ask("POST", "logs", {"do": "compact", "topic": topic})

    def apply_retention(self) -> None:
        """Delete what retention.ms and retention.bytes release now, instead of at the next check."""
        self._ask("POST", "logs", {"do": "retention"})

    # -- faults and requests -------------------------------------------------------------------------------------------

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
            raise ExpectationError("\n".join(map(unused_fault, unused)))

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
            groups = [f"  {each['group_id']}: {shown_group(each)}" for each in self.groups()]
        except OdradekError as error:
            requests, groups = [f"  {error}"], []
        log = self._running.log.read_text(encoding="utf-8", errors="replace").splitlines()
        warnings = [f"  {line}" for line in log if " WARN " in line or " ERROR " in line][-REPORTED_LINES:]
        parts = (("last requests", requests), ("groups", groups), ("warnings and errors", warnings))
        return "\n".join(f"{name}:\n" + "\n".join(lines) for name, lines in parts if lines)

    # -- processes -----------------------------------------------------------------------------------------------------

    @property
    def _running(self) -> _Process:
        if self._process is None:
            raise OdradekError("the broker does not run: call start(), or use a with block")
        return self._process

    @property
    def _control(self) -> Control:
        return self._running.control

    def _begin(self, directory: Path | None = None, port: int = 0, snapshot: Snapshot | None = None) -> Begun:
        """Request the start of a broker, on the data in `directory` if given; `_started` waits for it."""
        assert self._launcher is not None
        where, token = directory or self._launcher.new_directory(), secrets.token_urlsafe(16)
        fields = {} if snapshot is None else {**snapshot.start_fields, "is_frozen": True}
        if self._address is not None and directory is None:
            port = self._address.port
            fields["predecessors"] = self._predecessors
            self._predecessors += 1
        fields |= self._command(where, port)
        command_id = self._launcher.request("start", directory=str(where), token=token, **fields)
        return Begun(command_id, where, token, snapshot)

    def _command(self, directory: Path, port: int) -> dict[str, Any]:
        """The fields of the command that starts the broker."""
        properties = {
            **DEFAULTS,
            "listeners": f"{self._security.protocol}://127.0.0.1:{port}",
            "log.dirs": str(directory / "data"),
            **self._security.broker_properties(),
            **self._config,
        }
        if "authorizer.class.name" in properties:
            users = [properties.get("super.users", ""), f"User:{USER}", f"User:{BROKER_USER}"]
            properties["super.users"] = ";".join(filter(None, users))
        return {"properties": properties}

    def _started(self, begun: Begun) -> _Process:
        assert self._launcher is not None
        reply = self._launcher.reply(begun.command_id)
        ports = reply["ports"]
        self._state = State.RUNNING
        control = Control(reply["control"], begun.token)
        self._create_login(control)
        return _Process(reply["pid"], next(iter(ports.values())), ports, control, begun.directory, Path(reply["log"]))

    def _create_login(self, control: Control) -> None:
        """Create the user as which clients log in."""
        if self._security.is_scram:
            control.ask("POST", "users", self._security.login)

    def _replace(self, begun: Begun) -> None:
        """Wait for a new broker, and end the one before it, if there is one."""
        assert self._launcher is not None
        process, old = self._started(begun), self._process
        while self._address is None and process.port in self._launcher.used_ports and "listeners" not in self._config:
            again = self._begin(snapshot=begun.snapshot)  # the system has given a port again
            self._end(process)
            process = self._started(again)
        self._launcher.used_ports.add(process.port)
        if begun.snapshot is not None:
            process.control.ask("POST", "clock", begun.snapshot.clock)
        self._process = process
        if old is not None:
            self._end(old)
        if self._address is not None:
            process.control.ask("POST", "listeners")

    def _discard(self, begun: Begun | None) -> None:
        """End a broker that is not needed."""
        if begun is not None:
            state = self._state
            with suppress(OdradekError):  # it could not start, and has ended
                self._end(self._started(begun))
            self._state = state

    def _signal(self, pid: int, number: int, *, wait: bool = False) -> None:
        assert self._launcher is not None
        self._launcher.run("signal", pid=pid, signal=int(number), **{"await": wait})

    def _end(self, process: _Process) -> None:
        assert self._launcher is not None
        process.control.close()
        self._launcher.run("end", pid=process.pid, directory=str(process.directory))


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


class Disk:
    """The disk of a broker. Its faults last until `heal`; a restart and a reset bring a healthy one."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def fill(self) -> None:
        """Let every write fail with "No space left on device"."""
        self._change(full=True)

    def slow(self, seconds: float) -> None:
        """Let each fsync, and each read that the page cache would have answered, take so long in addition."""
        self._change(delay_ms=round(seconds * 1000))

    def fail_fsync(self, times: int | None = 1) -> None:
        """Let the next `times` fsyncs fail (None: all). As in Kafka, the log directory is offline then, and a broker
        without another one ends.
        """
        self._change(failing_fsyncs=times)

    def heal(self) -> None:
        """End the faults of the disk."""
        self._change(full=False, delay_ms=0, failing_fsyncs=0)

    def described(self) -> dict[str, Any]:
        """The faults: `full`, `delay_ms`, and `failing_fsyncs` (None: all)."""
        faults: dict[str, Any] = self._broker._control.ask("GET", "disk")
        return faults

    def _change(self, **what: object) -> None:
        self._broker._control.ask("POST", "disk", what)


def _shown_request(entry: Mapping[str, Any]) -> str:
    outcome = ", ".join(entry["errors"]) or ("ok" if entry["duration_ms"] is not None else "not answered")
    fault = "" if entry["fault"] is None else f" (fault {entry['fault']})"
    took = "" if entry["duration_ms"] is None else f" {entry['duration_ms']:.1f} ms"
    return f"  {entry['api']} v{entry['version']} {entry['client_id'] or ''}: {outcome}{fault}{took}"
