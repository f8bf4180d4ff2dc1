"""Pending watches, by path."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Sequence

from zookeeper.coordination import EventType, Watch, WatchEvent

logger = logging.getLogger("kafka.zookeeper.ZooKeeperClient")

_ENDS_CHILDREN_WATCH = frozenset({EventType.CHILDREN_CHANGED, EventType.DELETED})


class WatchTable:
    """Watches and the ids of the sessions that set them, by path and kind. A watch set twice on a path fires once."""

    def __init__(self) -> None:
        self._data: dict[str, dict[Watch, int]] = defaultdict(dict)
        self._children: dict[str, dict[Watch, int]] = defaultdict(dict)

    def watch_data(self, path: str, watch: Watch, session_id: int) -> None:
        """Register `watch` to fire when the node is created, changed or deleted."""
        self._data[path][watch] = session_id

    def watch_children(self, path: str, watch: Watch, session_id: int) -> None:
        """Register `watch` to fire when a child is created or deleted, or the node itself is deleted."""
        self._children[path][watch] = session_id

    def take(self, events: Sequence[WatchEvent]) -> list[tuple[Watch, WatchEvent]]:
        """Remove and return the watches that `events` fire."""
        fired: list[tuple[Watch, WatchEvent]] = []
        data, children = self._data, self._children
        for event in events:
            kind, path = event.type, event.path
            if path not in data and path not in children:
                continue  # the common case: a topic has thousands of nodes without a watch
            watches: dict[Watch, int] = {}
            if kind is not EventType.CHILDREN_CHANGED:
                watches |= data.pop(path, {})
            if kind in _ENDS_CHILDREN_WATCH:
                watches |= children.pop(path, {})
            fired.extend((watch, event) for watch in watches)
        return fired

    def take_all(self) -> list[tuple[Watch, WatchEvent]]:
        """Remove and return all watches, each with the event that its session has expired."""
        paths = dict.fromkeys((*self._data, *self._children))
        fired: list[tuple[Watch, WatchEvent]] = []
        for path in paths:
            watches = self._data.get(path, {}) | self._children.get(path, {})
            fired.extend((watch, WatchEvent(EventType.SESSION_EXPIRED, path)) for watch in watches)
        self._data.clear()
        self._children.clear()
        return fired

    def of_session(self, session_id: int) -> list[tuple[Watch, str]]:
        """The watches of a session, with their paths."""
        return [
            (watch, path)
            for table in (self._data, self._children)
            for path, watches in table.items()
            for watch, owner in watches.items()
            if owner == session_id
        ]

    def drop_session(self, session_id: int) -> None:
        """Forget every watch of a session."""
        for table in (self._data, self._children):
            for path in [path for path, watches in table.items() if session_id in watches.values()]:
                table[path] = {watch: owner for watch, owner in table[path].items() if owner != session_id}
                if not table[path]:
                    del table[path]


def fire(fired: Sequence[tuple[Watch, WatchEvent]]) -> None:
    """Call the watches. One that fails is logged, and does not keep the others from running."""
    for watch, event in fired:
        try:
            watch(event)
        except Exception:
            logger.exception("A watch on %s failed at %s", event.path, event.type.value)
