"""How far one follower has come, as its leader knows it (Kafka classes `Replica`, `ReplicaState`).

Times are of the monotonic clock: a wall clock that jumps ahead must not put all followers out of sync at once.
"""

from __future__ import annotations

from cluster.replication.isr_changes import UNKNOWN_BROKER_EPOCH

UNKNOWN_OFFSET = -1
NEVER_MS = -(1 << 62)


class SessionFetches:
    """The fetches of one fetch session. Each confirms what the follower has of all partitions of the session."""

    __slots__ = ("last_ms",)

    def __init__(self) -> None:
        self.last_ms = NEVER_MS


class FollowerProgress:
    """The progress that the fetches of one follower have confirmed: everything below `log_end_offset` is in its log."""

    __slots__ = (
        "_session",
        "broker_epoch",
        "is_awaited",
        "last_caught_up_ms",
        "last_fetch_leader_end_offset",
        "last_fetch_ms",
        "log_end_offset",
        "log_start_offset",
        "may_join_from_ms",
    )

    def __init__(self) -> None:
        self.log_end_offset = self.log_start_offset = UNKNOWN_OFFSET
        self.last_fetch_leader_end_offset = UNKNOWN_OFFSET
        self.last_fetch_ms = self.last_caught_up_ms = NEVER_MS
        self.broker_epoch = UNKNOWN_BROKER_EPOCH
        """Of the incarnation that fetched last."""
        self.may_join_from_ms = NEVER_MS
        """Before, this incarnation is not to be proposed for the ISR."""
        self.is_awaited = False
        """Whether it was caught up when that was looked at last."""
        self._session: SessionFetches | None = None
        """Its fetches are as if they were recorded here, while it has everything."""

    def begin_epoch(self, now_ms: int, *, is_in_sync: bool) -> None:
        """This broker begins to lead, or goes on in a new epoch. A follower that is in sync has until
        `replica.lag.time.max.ms` from now to show it; another one does not hold the high watermark back.
        """
        self.last_fetch_ms = self.last_caught_up_ms = now_ms if is_in_sync else NEVER_MS
        self.may_join_from_ms = NEVER_MS
        self.is_awaited = False
        self._session = None

    def go_on(self, leader_end_offset: int) -> None:
        """This broker leads on: what the follower has confirmed in the epoch before still holds."""
        self.last_fetch_leader_end_offset = leader_end_offset

    def record(
        self, fetch_offset: int, log_start_offset: int, leader_end_offset: int, broker_epoch: int, now_ms: int
    ) -> None:
        """A fetch came, which asks for what begins at `fetch_offset` while the leader's log ended where it says.

        The follower was caught up now if it has everything; or when it fetched last if it has everything that was there
        then. So one that fetches without pause stays caught up even when records come all the time.
        """
        if self._session is not None:
            self.take_over(self._session)
        if fetch_offset >= leader_end_offset:
            self.last_caught_up_ms = max(self.last_caught_up_ms, now_ms)
        elif fetch_offset >= self.last_fetch_leader_end_offset:
            self.last_caught_up_ms = max(self.last_caught_up_ms, self.last_fetch_ms)
        self.log_end_offset = fetch_offset
        self.log_start_offset = log_start_offset
        self.last_fetch_leader_end_offset = max(leader_end_offset, self.last_fetch_leader_end_offset)
        self.last_fetch_ms = now_ms
        if broker_epoch != self.broker_epoch:
            self.broker_epoch = broker_epoch
            self.may_join_from_ms = NEVER_MS

    def confirm_by(self, session: SessionFetches) -> None:
        """It has everything, and the fetch that said so was recorded. Those of the session that follow say the same
        until `take_over`, which is to be called before the first one that comes after an append.
        """
        if self._session is not None:
            self.take_over(self._session)
        self._session = session

    def take_over(self, session: SessionFetches) -> None:
        """Record the last fetch of the session, if it was one that confirms this; its later ones do not."""
        if self._session is session:
            self.last_fetch_ms = max(self.last_fetch_ms, session.last_ms)
            self.last_caught_up_ms = max(self.last_caught_up_ms, session.last_ms)
            self._session = None

    @property
    def caught_up_ms(self) -> int:
        """When it had everything last, as far as that is known."""
        session = self._session
        return self.last_caught_up_ms if session is None else max(self.last_caught_up_ms, session.last_ms)

    def is_caught_up(self, leader_end_offset: int, now_ms: int, lag_time_max_ms: int) -> bool:
        """Whether it has everything, or had everything at a time not longer ago than that."""
        return self.log_end_offset == leader_end_offset or now_ms - self.caught_up_ms <= lag_time_max_ms
