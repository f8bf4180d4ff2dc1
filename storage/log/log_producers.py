"""The producer state of a log, opened on first use: most logs of a broker are idle most of the time."""

from __future__ import annotations

from collections.abc import Sequence

from storage.log.local_log import LocalLog
from storage.log.producer_state import ProducerStateManager
from storage.segment.log_segment import LogSegment
from storage.segment.segment_search import headers_from


class LogProducers:
    """The producers of a log: a `ProducerStateManager`, or the snapshots that it will be loaded from."""

    __slots__ = ("_snapshot_offsets", "loaded")

    def __init__(self, snapshot_offsets: Sequence[int]) -> None:
        self._snapshot_offsets = snapshot_offsets
        self.loaded: ProducerStateManager | None = None
        """The state up to the log end; None until it is first used."""

    @property
    def snapshot_offsets(self) -> Sequence[int]:
        """Offsets of the producer snapshots in the directory."""
        return self._snapshot_offsets if self.loaded is None else self.loaded.snapshot_offsets

    def remove_expired(self, now_ms: int, expiration_ms: int) -> int:
        """Forget the producers silent for that long; returns how many. State that was not read yet is left alone."""
        return 0 if self.loaded is None else self.loaded.remove_expired(now_ms, expiration_ms)

    def use(self, state: ProducerStateManager) -> None:
        """Take the state that was gathered up to the log end."""
        self.loaded = state
        self._snapshot_offsets = ()

    def load(self, local: LocalLog) -> ProducerStateManager:
        """The state up to the end of `local`, read from snapshot and log if it was not yet. Raises ApiError."""
        state = self.loaded
        if state is None:
            name = str(local.topic_partition)
            state = ProducerStateManager(local.file_system, local.path, name, self._snapshot_offsets)
            try:
                load_producers(state, local.segments, local.segments[0].base_offset, local.log_end_offset)
            except OSError as error:
                doing = f"Error while reading the producer state of {local.topic_partition}"
                raise local.fail(error, doing) from error
            self.use(state)
        return state


def load_producers(
    state: ProducerStateManager, segments: Sequence[LogSegment], start_offset: int, end_offset: int
) -> None:
    """Read `state` as of `end_offset`, where `segments` end, from the newest snapshot and the batches behind it.

    `start_offset` is the base of the first segment of the log, not the log start: what can still be known of a producer
    is worth knowing. Raises OSError, ApiError CORRUPT_MESSAGE.
    """
    state.load(start_offset, end_offset)
    if state.map_end_offset < end_offset:
        for batch in headers_from(segments, state.map_end_offset):
            state.replay(batch)
        state.map_end_offset = end_offset
