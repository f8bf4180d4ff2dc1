"""The resources that a request names, found by Kafka's field names; and a request reduced to some of its partitions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar

from protocol.config_resources import ConfigResourceType
from protocol.uuids import ZERO_UUID, Uuid
from protocol.wire.schema import Message, Request, Struct

_TOPIC_FIELDS: Final = ("topic", "topic_name")
_TOPIC_ARRAYS: Final = frozenset(
    {"topics", "topic_data", "topic_states", "v3_and_below_topics", "responses", "topic_results", "results"}
)
"""Arrays whose elements have the topic's name in the field `name`."""
_PARTITION_FIELDS: Final = ("partition", "partition_index", "index")
_PARTITION_ARRAYS: Final = frozenset({"partitions", "partition_indexes"})
_GROUP_KEYS, _TRANSACTION_KEYS = 0, 1
"""The types of keys of FindCoordinator."""

M = TypeVar("M", bound=Message)
TopicName = Callable[[Uuid], str | None]
Keep = Callable[[str | None, int | None], bool]
"""Whether to keep a topic's partition; the partition is None where the request names a topic as a whole."""


def partitions_of(message: Message, topic_name: TopicName) -> list[tuple[str | None, int | None]]:
    """The topics and partitions that a message names, in its order; the partition is None for a topic as a whole."""
    found: list[tuple[str | None, int | None]] = []

    def note(topic: str | None, partition: int | None) -> bool:
        found.append((topic, partition))
        return True

    _Reduction(topic_name, note).reduced(message, "", None)
    return found


def reduced(message: M, topic_name: TopicName, keep: Keep) -> M | None:
    """A copy with only the topics and partitions to keep, or None if the message names some and all were dropped."""
    left: M | None
    left, _ = _Reduction(topic_name, keep).reduced(message, "", None)
    return left


def groups_of(request: Request) -> list[str]:
    """The groups that a request names."""
    keys = getattr(request, "key_type", None) == _GROUP_KEYS
    return [*_names(request, {"group_id", "groups", "groups_names"}), *_keys(request, wanted=keys)]


def transactional_ids_of(request: Request) -> list[str]:
    """The transactional ids that a request names."""
    fields = {"transactional_id", "transactional_ids", "v3_and_below_transactional_id"}
    keys = getattr(request, "key_type", None) == _TRANSACTION_KEYS
    return [*_names(request, fields), *_keys(request, wanted=keys)]


class _Reduction:
    """Drops parts of one message."""

    def __init__(self, topic_name: TopicName, keep: Keep) -> None:
        self._topic_name = topic_name
        self._keep = keep

    def reduced(self, struct: Any, array: str, topic: str | None) -> tuple[Any, bool]:
        """The rest of a struct in `array`, or None; and whether the struct names a topic or a partition itself."""
        own = self._own_topic(struct, array)
        name = own or topic
        for field in _PARTITION_FIELDS:
            partition = getattr(struct, field, None)
            if isinstance(partition, int):
                return (struct if self._keep(name, partition) else None), True
        changes: dict[str, list[Any]] = {}
        for field in struct.declared_fields:
            value = getattr(struct, field)
            if isinstance(value, list) and value:
                kept, names_some = self._reduced_array(value, field, name)
                if names_some:
                    changes[field] = kept
        if changes:
            return (struct.replace(**changes) if any(changes.values()) else None), True
        if own is not None:
            return (struct if self._keep(own, None) else None), True
        return struct, False

    def _reduced_array(self, elements: list[Any], field: str, topic: str | None) -> tuple[list[Any], bool]:
        if isinstance(elements[0], Struct):
            outcomes = [self.reduced(each, field, topic) for each in elements]
            return [left for left, _ in outcomes if left is not None], any(names for _, names in outcomes)
        if field in _PARTITION_ARRAYS:
            return [each for each in elements if self._keep(topic, each)], True
        if field == "topic_names":
            return [each for each in elements if self._keep(each, None)], True
        return elements, False

    def _own_topic(self, struct: Any, array: str) -> str | None:
        for field in (*_TOPIC_FIELDS, "name") if array in _TOPIC_ARRAYS else _TOPIC_FIELDS:
            value = getattr(struct, field, None)
            if isinstance(value, str) and value:
                return value
        if getattr(struct, "resource_type", None) == ConfigResourceType.TOPIC:
            resource: str = struct.resource_name
            return resource
        topic_id = getattr(struct, "topic_id", ZERO_UUID)
        return None if topic_id == ZERO_UUID else self._topic_name(topic_id)


def _names(owner: Any, fields: set[str]) -> Iterator[str]:
    """The texts in these fields of a request, and of the structs in its arrays."""
    for field in owner.declared_fields:
        value = getattr(owner, field)
        if isinstance(value, str) and field in fields:
            yield value
        elif isinstance(value, list):
            for each in value:
                if isinstance(each, Struct):
                    yield from _names(each, fields)
                elif isinstance(each, str) and field in fields:
                    yield each


def _keys(request: Any, *, wanted: bool) -> list[str]:
    """The keys of a FindCoordinator request."""
    return [*request.coordinator_keys, *filter(None, [request.key])] if wanted else []
