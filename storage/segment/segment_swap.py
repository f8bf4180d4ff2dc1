"""Segments that take the place of others, so that a start after a crash finds the one or the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from storage.segment.log_files import SWAP_SUFFIX
from storage.segment.log_segment import LogSegment


def put_in_place(new: Sequence[LogSegment], take_away_old: Callable[[], None]) -> None:
    """Let the `.cleaned` segments `new`, whose content is on stable storage, take the place of those that
    `take_away_old` renames. Raises OSError.

    The last becomes `.swap` first: a start that finds a `.cleaned` below it knows that this had only begun.
    """
    for segment in reversed(new):
        segment.change_suffix(SWAP_SUFFIX)
    take_away_old()
    for segment in new:
        segment.change_suffix("")
