"""Large requests in shares: the ordinary handler of an API answers one after the other, and the answers are joined."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, Final

from protocol.value import Value
from protocol.wire.schema import Request, Response, Struct, fields_of
from protocol.wire.wire_types import ArrayOf

SHARE: Final = 100
"""Elements of a share, if its API does not handle fewer at once."""

_Element = tuple[tuple[Any, ...], Any]
"""An element with the structs that hold it, outermost first; None for those of a struct without elements."""


class Split(Value):
    """How a request may be split: `path` leads to the array whose elements can be handled some at a time, such as
    `topics.partitions`.

    Elements that have the same values in the fields `unique`, of their own or of what holds them, come in one share,
    for APIs that refuse what is named twice. Where elements are no structs, the array itself is named instead.
    """

    path: str
    unique: tuple[str, ...] = ()

    def shares(self, request: Request, size: int, is_over: Callable[[], bool]) -> Generator[Request | None, None, None]:
        """Take the elements out of `request`, as requests of up to `size` of them, or a little more where they have to
        stay together. Gives None when `is_over` says that the slice is over.
        """
        path = tuple(self.path.split("."))
        share: list[_Element] = []
        for elements in self._together(request, path, is_over) if self.unique else _single(request, path):
            share += elements
            if len(share) >= size:
                yield _assembled(request, path, share)
                share = []
            elif is_over():
                yield None
        if share:
            yield _assembled(request, path, share)

    def _together(
        self, request: Request, path: tuple[str, ...], is_over: Callable[[], bool]
    ) -> Iterator[Sequence[_Element]]:
        """Take the elements out of `request`, those that are named several times last, two or three of them together,
        as two are refused as all are. None at all where the slice is over.
        """
        seen: set[int] = set()
        repeated: set[int] = set()
        for element in _elements(request, path, pops=False):
            number = hash(self._key(element))
            (repeated if number in seen else seen).add(number)
            if is_over():
                yield ()
        del seen
        equal: dict[tuple[Any, ...], list[_Element]] = {}
        for element in _elements(request, path, pops=True):
            if repeated and hash(self._key(element)) in repeated:
                equal.setdefault(self._key(element), []).append(element)
                yield ()
            else:
                yield (element,)
        for elements in equal.values():
            while elements:
                count = 3 if len(elements) == 3 else 2
                yield elements[-count:]
                del elements[-count:]

    def join(self, answer: Response, more: Response) -> None:
        """Put what `more` answers behind what `answer` does."""
        _join(answer, more, self.path.count("."))
        if hasattr(answer, "throttle_time_ms"):
            answer.throttle_time_ms = max(answer.throttle_time_ms, getattr(more, "throttle_time_ms", 0))

    def _key(self, element: _Element) -> tuple[Any, ...]:
        holders, item = element
        if not isinstance(item, Struct):
            return (item,)
        return tuple(
            getattr(each, name) for name in self.unique for each in (*holders, item) if name in each.declared_fields
        )


def arrays_of(request_type: type[Request]) -> list[str]:
    """The names of the arrays that requests of a type consist of."""
    return [spec.name for spec in fields_of(request_type) if isinstance(spec.type, ArrayOf)]


def split_of(request: Request, splits: Sequence[Split]) -> Split | None:
    """The first of the splits that fits a request: its version has that array, which is neither null nor empty."""
    return next((split for split in splits if getattr(request, split.path.partition(".")[0])), None)


def _elements(owner: Any, path: tuple[str, ...], *, pops: bool) -> Iterator[_Element]:
    """The elements at the end of the path. With `pops` the arrays are emptied meanwhile, from the beginning on, so that
    what has been handled is freed."""
    name, rest = path[0], path[1:]
    items: list[Any] = getattr(owner, name)
    if pops:
        items.reverse()
    for item in _popped(items) if pops else items:
        if not rest:
            yield (), item
            continue
        if not getattr(item, rest[0]):
            yield (item,), None
            continue
        for holders, element in _elements(item, rest, pops=pops):
            yield (item, *holders), element


def _single(request: Request, path: tuple[str, ...]) -> Iterator[Sequence[_Element]]:
    return ((element,) for element in _elements(request, path, pops=True))


def _popped(items: list[Any]) -> Iterator[Any]:
    while items:
        yield items.pop()


def _assembled(request: Request, path: tuple[str, ...], elements: list[_Element]) -> Request:
    """The request with these elements alone."""
    share = request.replace(**{path[0]: []})
    holders: tuple[Any, ...] = ()
    copies: list[Any] = []
    for element_holders, element in elements:
        same = 0
        while same < len(copies) and same < len(element_holders) and holders[same] is element_holders[same]:
            same += 1
        del copies[same:]
        for depth, holder in enumerate(element_holders[same:], start=same):
            has_elements = depth < len(path) - 1 and (element is not None or depth < len(element_holders) - 1)
            copy = holder.replace(**{path[depth + 1]: []}) if has_elements else holder
            getattr(copies[-1] if copies else share, path[depth]).append(copy)
            copies.append(copy)
        holders = element_holders
        if element is not None:
            getattr(copies[-1] if copies else share, path[-1]).append(element)
    return share


def _join(answer: Any, more: Any, depth: int) -> None:
    """Put the lists of `more` behind those of `answer`. A struct that was cut, up to `depth` levels below, becomes one
    again."""
    for name in answer.declared_fields:
        items, behind = getattr(answer, name), getattr(more, name)
        if not isinstance(items, list) or not behind:
            continue
        if items and depth and _is_cut(items[-1], behind[0]):
            _join(items[-1], behind[0], depth - 1)
            behind = behind[1:]
        items.extend(behind)


def _is_cut(last: Any, first: Any) -> bool:
    """Whether the two are parts of one answer: they differ in their arrays alone."""
    has_array = False
    for name in last.declared_fields:
        value = getattr(last, name)
        if isinstance(value, list):
            has_array = True
        elif value != getattr(first, name):
            return False
    return has_array
