"""Events of a history: requests, their answers and times, and the faults of the machines.

A log is one partition of one broker, named `broker/topic-partition`. Times are virtual seconds, and events come in
order. A value is sent once, by one producer.
"""

from __future__ import annotations

from typing import NamedTuple

OK = "ok"
FAILED = "failed"
UNKNOWN = "unknown"


class LogCreated(NamedTuple):
    """A log is created; `lossless` if everything is fsynced before it is acknowledged, `transactional` if all its
    records belong to transactions and its readers are `read_committed`.
    """

    at: float
    log: str
    lossless: bool
    transactional: bool = False


class DeletionInvoked(NamedTuple):
    """The deletion of a log was requested."""

    at: float
    log: str


class LogDeleted(NamedTuple):
    """The deletion of a log was acknowledged: its records are gone for good. Another log of the name may follow."""

    at: float
    log: str


class LogMadeAgain(NamedTuple):
    """The creation of a topic with a deleted one's name was acknowledged. Commits until now may belong to the old log:
    a coordinator that was away learns of the deletion late, and forgets them then.
    """

    at: float
    log: str


class RecordsDeleted(NamedTuple):
    """An administrator deletes the records below an offset: from now on they, and no others, may be gone."""

    at: float
    log: str
    before: int


class SendInvoked(NamedTuple):
    """A producer gets a record to send; its records of one log are in the order of these events. `transaction` names
    the record's transaction.
    """

    at: float
    producer: str
    log: str
    value: bytes
    idempotent: bool
    transaction: str | None = None


class SendDone(NamedTuple):
    """`outcome` OK with the offset (-1 when unknown), FAILED (it is in no log) or UNKNOWN."""

    at: float
    log: str
    value: bytes
    outcome: str
    offset: int


class Read(NamedTuple):
    """A reader gets a record."""

    at: float
    reader: str
    log: str
    offset: int
    value: bytes


class Positioned(NamedTuple):
    """A reader gets a new position: by an assignment, a seek or a reset. `offset` None: it does not say where."""

    at: float
    reader: str
    log: str
    offset: int | None


class FinalRead(NamedTuple):
    """All records of a log after everything has healed, with the bounds that the broker reports. `markers` are the
    offsets of the control records.
    """

    at: float
    log: str
    start: int
    end: int
    records: tuple[tuple[int, bytes], ...]
    markers: tuple[int, ...] = ()


class SessionBegun(NamedTuple):
    """A producer takes over a transactional id: sessions of lower epochs are fenced."""

    at: float
    transactional_id: str
    session: str
    epoch: int


class EndInvoked(NamedTuple):
    """The producer of a session asks to commit a transaction, or to abort it."""

    at: float
    transaction: str
    session: str
    commit: bool


class EndDone(NamedTuple):
    """`outcome` OK, FAILED (it does not end as requested) or UNKNOWN."""

    at: float
    transaction: str
    outcome: str


class FinalCommittedRead(NamedTuple):
    """Everything that `read_committed` readers see of a log after all producers have stopped and the longest
    transaction timeout has passed, with the last stable offset and the high watermark.
    """

    at: float
    log: str
    stable: int
    end: int
    records: tuple[tuple[int, bytes], ...]


class TransactionsOver(NamedTuple):
    """All transactional logs have had their `FinalCommittedRead`."""

    at: float


class LoopOver(NamedTuple):
    """A loop has ended that writes to `outputs`, for each record of `inputs`, `prefix`, the value, "@" and a unique
    suffix. All logs have had their `FinalCommittedRead`.
    """

    at: float
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    prefix: bytes


class EndOffset(NamedTuple):
    """The broker reports the end of a log for readers (its high watermark)."""

    invoked: float
    at: float
    log: str
    offset: int


class StableOffset(NamedTuple):
    """The leader of an epoch reports its last stable offset: below it, no transaction is open."""

    invoked: float
    at: float
    log: str
    epoch: int
    offset: int


class LeaderEpoch(NamedTuple):
    """The broker reports the epoch of a log's leader."""

    invoked: float
    at: float
    log: str
    epoch: int


class CommitInvoked(NamedTuple):
    """A member commits an offset of a group; `commit` numbers the commits. A transaction's commit has no `generation`
    (None), and `OffsetsTaken` names the member.
    """

    at: float
    group: str
    log: str
    commit: int
    offset: int
    generation: int | None


class OffsetsTaken(NamedTuple):
    """The broker has added offsets to a transaction, for a member of that generation."""

    invoked: float
    at: float
    group: str
    generation: int


class CommitDone(NamedTuple):
    """`outcome` as for a send."""

    at: float
    commit: int
    outcome: str


class CommittedOffset(NamedTuple):
    """The broker reports a group's committed offset, or None."""

    invoked: float
    at: float
    group: str
    log: str
    offset: int | None


class Assigned(NamedTuple):
    """A member gets its assignment in a generation."""

    at: float
    group: str
    generation: int
    member: str
    logs: tuple[str, ...]


class MachineCrashed(NamedTuple):
    """Power failed: logs of the broker that are not lossless may have lost their ends, and groups, unless
    `groups_lossless`, their last commits.
    """

    at: float
    broker: str
    groups_lossless: bool


class Damaged(NamedTuple):
    """Bits flipped in a stored batch: the records from `first` to `last` may be gone, and no others."""

    at: float
    log: str
    first: int
    last: int


class Disturbed(NamedTuple):
    """Processes or connections were disturbed: from now on producers may have resent records."""

    at: float
    what: str


class Trouble(NamedTuple):
    """An event that must never happen; `check` names the check that it violates."""

    at: float
    check: str
    text: str


Event = (
    LogCreated
    | DeletionInvoked
    | LogDeleted
    | LogMadeAgain
    | RecordsDeleted
    | SendInvoked
    | SendDone
    | Read
    | Positioned
    | FinalRead
    | SessionBegun
    | EndInvoked
    | EndDone
    | FinalCommittedRead
    | TransactionsOver
    | LoopOver
    | EndOffset
    | StableOffset
    | LeaderEpoch
    | CommitInvoked
    | CommitDone
    | OffsetsTaken
    | CommittedOffset
    | Assigned
    | MachineCrashed
    | Damaged
    | Disturbed
    | Trouble
)
