"""Incremental fetch sessions (KIP-227): a consumer names its partitions once, then only the changes.

Each Fetch request opens a `FetchContext`, which knows the partitions to read and how to shape the answer: a full answer
holds exactly the requested partitions, an incremental one only those that changed (KIP-227). Sessions live in memory;
losing one costs its client one full request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from broker.replication.delayed_fetch import CachedPartition, PartitionData
from broker.replication.follower_fetch import SessionWatch
from environment.contract import Random
from environment.sliced import Sliced
from protocol.errors import ErrorCode
from protocol.messages.fetch import FetchRequest, FetchResponse
from protocol.uuids import Uuid

INVALID_SESSION_ID: Final = 0
INITIAL_EPOCH: Final = 0
FINAL_EPOCH: Final = -1
MOST_ADDED: Final = 5_000
"""Partitions beyond which a consumer's session cannot grow, because a session is updated in one go."""
PARTITION_BYTES: Final = 450
"""Memory per partition of a session, without the topic name."""
NAMES_UNTIL_VERSION: Final = 12
"""Fetch uses topic names up to this version, and ids above it (KIP-516)."""

ResolveTopic = Callable[[Uuid], str | None]
PartitionResult = tuple[CachedPartition, PartitionData]

_Key = tuple[str | Uuid, int]


class FetchSession:
    """The partitions of one client. `epoch` is the epoch that its next request must carry."""

    __slots__ = (
        "_unresolved",
        "epoch",
        "held_bytes",
        "is_follower",
        "last_used_s",
        "partitions",
        "session_id",
        "uses_topic_ids",
        "watch",
    )

    def __init__(
        self,
        session_id: int,
        uses_topic_ids: bool,
        partitions: dict[_Key, CachedPartition],
        now_s: float,
        *,
        is_follower: bool,
    ) -> None:
        self.session_id = session_id
        self.uses_topic_ids = uses_topic_ids
        self.partitions = partitions
        self.is_follower = is_follower
        self.epoch = 1
        self.last_used_s = now_s
        self.watch = SessionWatch(partitions) if is_follower else None
        """Only followers have a watch: they have thousands of partitions, and fetch after each change."""
        self.held_bytes = sum(map(_bytes_of, partitions))
        """Approximate memory of its partitions."""
        self._unresolved = {key: each for key, each in partitions.items() if each.topic is None}

    def update(self, request: FetchRequest, asked: Mapping[_Key, CachedPartition], resolve: ResolveTopic) -> None:
        """Apply the changes of a request: forgotten partitions, and the new or changed ones in `asked`."""
        for forgotten in request.forgotten_topics_data:
            topic: str | Uuid = forgotten.topic_id if self.uses_topic_ids else forgotten.topic
            for partition in forgotten.partitions:
                known = self.partitions.pop((topic, partition), None)
                if known is not None:
                    self.held_bytes -= _bytes_of((topic, partition))
                self._unresolved.pop((topic, partition), None)
                if known is not None and self.watch is not None:
                    self.watch.forget(known)
        for key, wanted in asked.items():
            known = self.partitions.get(key)
            if known is None:
                known = self.partitions[key] = wanted
                self.held_bytes += _bytes_of(key)
                if wanted.topic is None:
                    self._unresolved[key] = wanted
            else:
                known.update_request_params(wanted)
            if self.watch is not None:
                self.watch.ask(known)
        for key, known in list(self._unresolved.items()):
            # The topic may have been created since.
            known.topic = resolve(known.topic_id)
            if known.topic is not None:
                del self._unresolved[key]

    def close(self) -> None:
        """Stop watching."""
        if self.watch is not None:
            self.watch.close()


LENGTH_BYTES: Final = 4


class FetchContext:
    """The partitions of one Fetch request and the shape of its answer; this base class answers in full, sessionless."""

    def __init__(self, partitions: Sequence[CachedPartition], watch: SessionWatch | None = None) -> None:
        """`partitions` are the ones to read; with a `watch`, it names them."""
        self.partitions = partitions
        self.watch = watch

    def note(self, partition: CachedPartition, data: PartitionData) -> bool:  # noqa: ARG002
        """Record a result before it is sent. Returns whether the answer needs it."""
        return True

    def response(self, noted: Iterable[PartitionResult]) -> FetchResponse:
        """The response with these results."""
        return _response(INVALID_SESSION_ID, noted)

    def respond(self, results: Iterable[PartitionResult]) -> FetchResponse:
        """Record `results`, and return the response."""
        note = self.note
        return self.response([result for result in results if note(*result)])

    def size(self, results: Iterable[PartitionResult], version: int) -> int:
        """Size of that response as Kafka counts it: with its length prefix, without its header."""
        parts = _response(INVALID_SESSION_ID, results).encode_after(bytearray(LENGTH_BYTES), version)
        return sum(map(len, parts))

    def throttled(self, throttle_ms: int) -> FetchResponse:
        """A response that holds only the throttle time. The session continues as if the request had not been made."""
        return FetchResponse(throttle_time_ms=throttle_ms, session_id=INVALID_SESSION_ID, responses=[])


class FullFetchContext(FetchContext):
    """A request for a new session: the first answer is full and carries the session id."""

    def __init__(
        self,
        cache: FetchSessionCache,
        partitions: Sequence[CachedPartition],
        uses_topic_ids: bool,
        is_follower: bool,
    ) -> None:
        super().__init__(partitions)
        self._is_follower = is_follower
        self._cache = cache
        self._uses_topic_ids = uses_topic_ids

    def note(self, partition: CachedPartition, data: PartitionData) -> bool:
        partition.update_response_data(data)
        return True

    def response(self, noted: Iterable[PartitionResult]) -> FetchResponse:
        session_id = self._cache.create(self.partitions, self._uses_topic_ids, is_follower=self._is_follower)
        return _response(session_id, noted)


class IncrementalFetchContext(FetchContext):
    """A later request of a session: the answer holds only changes."""

    def __init__(self, session: FetchSession) -> None:
        super().__init__(list(session.partitions.values()) if session.watch is None else (), session.watch)
        self._session = session

    def note(self, partition: CachedPartition, data: PartitionData) -> bool:
        if not partition.update_response_data(data):
            return False
        if len(data.records or b""):
            # A partition that returned data moves to the end of the queue, so that a byte limit cannot starve the
            # others.
            partitions, key = self._session.partitions, _key(partition, self._session.uses_topic_ids)
            if partitions.pop(key, None) is not None:
                partitions[key] = partition
        return True

    def response(self, noted: Iterable[PartitionResult]) -> FetchResponse:
        return _response(self._session.session_id, noted)

    def size(self, results: Iterable[PartitionResult], version: int) -> int:
        return super().size((result for result in results if result[0].must_respond(result[1])), version)

    def throttled(self, throttle_ms: int) -> FetchResponse:
        return FetchResponse(throttle_time_ms=throttle_ms, session_id=self._session.session_id, responses=[])


class ErrorFetchContext(FetchContext):
    """A request whose session cannot continue."""

    def __init__(self, error_code: ErrorCode) -> None:
        super().__init__(())
        self.error_code = error_code

    def response(self, noted: Iterable[PartitionResult]) -> FetchResponse:  # noqa: ARG002
        return FetchResponse(error_code=self.error_code, session_id=INVALID_SESSION_ID, responses=[])


class FetchSessionCache:
    """Sessions by id: at most `max_sessions` (max.incremental.fetch.session.cache.slots), and at most `most_bytes` for
    those of consumers (-1: no limit; the memory of followers is bounded by their replicas).

    If the cache is full, a new session replaces the least recently used one, provided that it has been idle for
    `min_idle_s` (Kafka's two minutes). A follower always replaces the least recently used consumer. Only sessions of
    consumers that have been idle as long are evicted for their bytes. Otherwise the new client gets no session and
    sends full requests. So does a consumer whose session would grow beyond MOST_ADDED partitions.
    """

    def __init__(
        self,
        max_sessions: int,
        random: Random,
        monotonic_s: Callable[[], float],
        most_bytes: int = -1,
        min_idle_s: float = 120.0,
    ) -> None:
        self._max_sessions = max_sessions
        self._most_bytes = most_bytes
        self._random = random
        self._monotonic_s = monotonic_s
        self._min_idle_s = min_idle_s
        self._sessions: dict[int, FetchSession] = {}  # in the order of last use
        self._held_bytes = 0
        """Bytes of the consumers' sessions."""

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def partition_count(self) -> int:
        """Partitions in all sessions, for the metric."""
        return sum(len(session.partitions) for session in self._sessions.values())

    def partitions_of(self, session_id: int) -> list[CachedPartition]:
        """The partitions of a session; none if there is no such session."""
        session = self._sessions.get(session_id)
        return [] if session is None else list(session.partitions.values())

    def is_of_follower(self, session_id: int) -> bool:
        """Whether this session belongs to a broker."""
        session = self._sessions.get(session_id)
        return session is not None and session.is_follower

    def open(
        self, request: FetchRequest, version: int, resolve: ResolveTopic, should_yield: Callable[[], bool]
    ) -> Sliced[FetchContext]:
        """The context of `request`; creates, continues or closes its session. The request is read in slices; a session
        changes at once.
        """
        uses_topic_ids = version > NAMES_UNTIL_VERSION
        if request.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            known = self._sessions.get(request.session_id)
            if known is not None:
                self._end(known)
            partitions = list((yield from _asked(request, uses_topic_ids, resolve, should_yield)).values())
            if request.session_epoch == INITIAL_EPOCH:
                return FullFetchContext(self, partitions, uses_topic_ids, is_from_follower(request))
            return FetchContext(partitions)
        session = self._continued(request, uses_topic_ids)
        if isinstance(session, FetchContext):
            return session
        asked = yield from _asked(request, uses_topic_ids, resolve, should_yield)
        session = self._continued(request, uses_topic_ids)  # it may have ended meanwhile
        return session if isinstance(session, FetchContext) else self._continue(session, request, asked, resolve)

    def create(self, partitions: Sequence[CachedPartition], uses_topic_ids: bool, *, is_follower: bool = False) -> int:
        """Create a session. Returns its id, or 0 when the cache is full."""
        now_s = self._monotonic_s()
        keyed = {_key(partition, uses_topic_ids): partition for partition in partitions}
        held_bytes = 0 if is_follower else sum(map(_bytes_of, keyed))
        if 0 <= self._most_bytes < held_bytes:
            return INVALID_SESSION_ID
        while len(self._sessions) >= self._max_sessions:
            oldest = self._replaceable(now_s, is_follower)
            if oldest is None:
                return INVALID_SESSION_ID
            self._end(oldest)
        while not is_follower and not self._has_room(held_bytes):
            oldest = self._oldest_consumer()
            if oldest is None or now_s - oldest.last_used_s < self._min_idle_s:
                return INVALID_SESSION_ID
            self._end(oldest)
        session_id = 0
        while session_id == INVALID_SESSION_ID or session_id in self._sessions:
            session_id = self._random.randrange(2**31 - 1)
        self._sessions[session_id] = FetchSession(session_id, uses_topic_ids, keyed, now_s, is_follower=is_follower)
        self._held_bytes += held_bytes
        return session_id

    def _has_room(self, held_bytes: int) -> bool:
        """Whether consumers' sessions may take this many more bytes."""
        return self._most_bytes < 0 or self._held_bytes + held_bytes <= self._most_bytes

    def _replaceable(self, now_s: float, is_follower: bool) -> FetchSession | None:
        """The session that a new session of a follower or a consumer may replace."""
        oldest = next(iter(self._sessions.values()), None)
        if oldest is None or now_s - oldest.last_used_s >= self._min_idle_s:
            return oldest
        return self._oldest_consumer() if is_follower else None

    def _oldest_consumer(self) -> FetchSession | None:
        return next((session for session in self._sessions.values() if not session.is_follower), None)

    def _end(self, session: FetchSession) -> None:
        del self._sessions[session.session_id]
        if not session.is_follower:
            self._held_bytes -= session.held_bytes
        session.close()

    def _continued(self, request: FetchRequest, uses_topic_ids: bool) -> FetchSession | FetchContext:
        """The session that a request continues, or the refusal."""
        session = self._sessions.get(request.session_id)
        if session is None:
            return ErrorFetchContext(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != request.session_epoch:
            return ErrorFetchContext(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if session.uses_topic_ids != uses_topic_ids:
            return ErrorFetchContext(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        if not session.is_follower:
            count = sum(len(topic.partitions) for topic in request.topics)
            if count > MOST_ADDED + len(session.partitions):
                return self._end_too_large(session)
        return session

    def _continue(
        self,
        session: FetchSession,
        request: FetchRequest,
        asked: Mapping[_Key, CachedPartition],
        resolve: ResolveTopic,
    ) -> FetchContext:
        before_bytes = session.held_bytes
        session.update(request, asked, resolve)
        if not session.is_follower:
            self._held_bytes += session.held_bytes - before_bytes
        has_grown = session.held_bytes > before_bytes and not session.is_follower
        if has_grown and (len(session.partitions) > MOST_ADDED or not self._has_room(0)):
            return self._end_too_large(session)
        if not session.partitions:
            # Kafka ends a session without partitions; the answer then carries the invalid session id.
            self._end(session)
            return FetchContext(())
        session.epoch = 1 if session.epoch == 2**31 - 1 else session.epoch + 1
        session.last_used_s = self._monotonic_s()
        self._sessions[session.session_id] = self._sessions.pop(session.session_id)
        return IncrementalFetchContext(session)

    def _end_too_large(self, session: FetchSession) -> FetchContext:
        """End the session, so that the consumer asks for all its partitions, in slices."""
        self._end(session)
        return ErrorFetchContext(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)


def is_from_follower(request: FetchRequest) -> bool:
    """Whether the request is from a broker, not a consumer."""
    replica = request.replica_state
    return (request.replica_id if replica is None else replica.replica_id) >= 0


def _bytes_of(key: _Key) -> int:
    topic, _ = key
    return PARTITION_BYTES + (len(topic) if isinstance(topic, str) else 0)


def _key(partition: CachedPartition, uses_topic_ids: bool) -> _Key:
    return (partition.topic_id if uses_topic_ids else partition.topic or "", partition.partition)


def _asked(
    request: FetchRequest, uses_topic_ids: bool, resolve: ResolveTopic, should_yield: Callable[[], bool]
) -> Sliced[dict[_Key, CachedPartition]]:
    partitions: dict[_Key, CachedPartition] = {}
    for topic in request.topics:
        name = resolve(topic.topic_id) if uses_topic_ids else topic.topic
        for asked in topic.partitions:
            partition = CachedPartition(name, topic.topic_id, asked)
            partitions[_key(partition, uses_topic_ids)] = partition
            if should_yield():
                yield
    return partitions


def _response(session_id: int, results: Iterable[PartitionResult]) -> FetchResponse:
    topics: list[FetchResponse.FetchableTopicResponse] = []
    last: tuple[str | None, Uuid] | None = None
    for partition, data in results:
        topic = (partition.topic, partition.topic_id)
        if topic != last:
            topics.append(
                FetchResponse.FetchableTopicResponse(
                    topic=partition.topic or "", topic_id=partition.topic_id, partitions=[]
                )
            )
            last = topic
        topics[-1].partitions.append(data)
    return FetchResponse(session_id=session_id, responses=topics)
