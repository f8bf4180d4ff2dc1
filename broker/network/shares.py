"""Large requests in shares: the ordinary handler of an API answers each share, and the answers are joined."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, Final

from environment.slices import SMALL_LIST, RepeatedKeys
from protocol.errors import ErrorCode
from protocol.value import Value
from protocol.wire.encoded_items import ItemEncoder
from protocol.wire.schema import Request, Response, Struct

SHARE: Final = 100
"""Elements per share, unless the API handles fewer at once."""

_Element = tuple[tuple[Any, ...], Any]
"""An element with its enclosing structs, outermost first. The element is None for a struct without elements."""


class Split(Value):
    """How a request may be split: `path` leads to the array whose elements can be handled in groups, such as
    `topics.partitions`.

    Elements that agree in the fields `unique`, their own or those of an enclosing struct, go into the same share, for
    APIs that refuse duplicates. If the elements are not structs, `unique` names the array itself.
    """

    path: str
    unique: tuple[str, ...] = ()

    def shares(
        self, request: Request, size: int, should_yield: Callable[[], bool]
    ) -> Generator[Request | None, None, None]:
        """Yield the elements of `request` in requests of up to `size` elements, or slightly more if some must stay
        together. Yields None when `should_yield` reports the end of the slice.
        """
        path = tuple(self.path.split("."))
        share: list[_Element] = []
        for elements in self._together(request, path, should_yield) if self.unique else _single(request, path):
            share += elements
            if len(share) >= size:
                yield _assembled(request, path, share)
                share = []
            elif should_yield():
                yield None
        if share:
            yield _assembled(request, path, share)

    def _together(
        self, request: Request, path: tuple[str, ...], should_yield: Callable[[], bool]
    ) -> Generator[Sequence[_Element], None, None]:
        """Yield the elements of `request`, duplicates last and in groups of two or three: two duplicates are refused
        like any number. Yields an empty group at the end of a slice.
        """
        repeated = RepeatedKeys()
        for element in _elements(request, path):
            repeated.add(self._key(element))
            if should_yield():
                yield ()
        for _ in repeated.find(should_yield):
            yield ()
        equal: dict[tuple[Any, ...], list[_Element]] = {}
        for element in _elements(request, path):
            if repeated.any and (key := self._key(element)) in repeated:
                equal.setdefault(key, []).append(element)
                yield ()
            else:
                yield (element,)
        for elements in equal.values():
            while elements:
                count = 3 if len(elements) == 3 else 2
                yield elements[-count:]
                del elements[-count:]
        while len(equal) >= SMALL_LIST:
            equal.popitem()
            if should_yield():
                yield ()

    def _key(self, element: _Element) -> tuple[Any, ...]:
        holders, item = element
        if not isinstance(item, Struct):
            return (item,)
        return tuple(
            getattr(each, name) for name in self.unique for each in (*holders, item) if name in each.declared_fields
        )


def arrays_of(request_type: type[Request]) -> list[str]:
    """The names of the arrays in requests of a type.

    They come from the text of the annotations: resolving those of all requests would add 10 ms to startup.
    """
    annotations = request_type.__annotations__
    return [name for name in request_type.declared_fields if annotations[name].startswith("list[")]


def split_of(request: Request, splits: Sequence[Split]) -> Split | None:
    """The first split that fits a request: the request's version has that array, and it is neither null nor empty."""
    return next((split for split in splits if getattr(request, split.path.partition(".")[0])), None)


def _elements(owner: Any, path: tuple[str, ...]) -> Iterator[_Element]:
    """The elements at the end of the path. Large arrays are decoded on the fly (`LazyArray`)."""
    name, rest = path[0], path[1:]
    for item in getattr(owner, name):
        if not rest:
            yield (), item
            continue
        if not getattr(item, rest[0]):
            yield (item,), None
            continue
        for holders, element in _elements(item, rest):
            yield (item, *holders), element


def _single(request: Request, path: tuple[str, ...]) -> Iterator[Sequence[_Element]]:
    return ((element,) for element in _elements(request, path))


def _assembled(request: Request, path: tuple[str, ...], elements: list[_Element]) -> Request:
    """The request reduced to these elements."""
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


class JoinedAnswers:
    """Joins the answers to the shares of a request. Complete items are encoded at once: a million of them would take
    ten times the memory as objects.

    In each array that shares may cut, the last item stays unencoded: the next answer may continue it.
    """

    def __init__(self, split: Split, response_type: type[Response], version: int) -> None:
        self._depth = split.path.count(".")
        self._response_type = response_type
        self._version = version
        self._encoders: dict[tuple[str, ...], ItemEncoder[Any]] = {}
        """Encoded items by array path: those of the answer's arrays, and those of the arrays in each last element."""
        self._answer: Response | None = None
        self._encodes = True
        """Whether items are small enough to encode without slices."""

    @property
    def is_refusal(self) -> bool:
        """Whether the request was refused as a whole."""
        return _is_refusal(self._answer)

    def add(self, answer: Response) -> None:
        """Append an answer to the others; a refusal replaces them all."""
        if self._answer is None or _is_refusal(answer):
            self._answer = answer
            self._encoders.clear()
            self._encodes = not _has_large_items(answer)
            self._fold(answer, self._depth, ())
            return
        _throttle(self._answer, answer)
        self._join(self._answer, answer, self._depth, ())

    def response(self) -> Response:
        """The answer to the request."""
        assert self._answer is not None
        self._end(self._answer, ())
        return self._answer

    def _join(self, answer: Any, more: Any, depth: int, path: tuple[str, ...]) -> None:
        """Append the lists of `more` to those of `answer`. Structs that were cut, up to `depth` levels down, are
        merged.
        """
        for name in answer.declared_fields:
            items, behind = getattr(answer, name), getattr(more, name)
            if not isinstance(items, list) or not behind:
                continue
            if items and depth and _is_cut(items[-1], behind[0]):
                self._join(items[-1], behind[0], depth - 1, (*path, name))
                behind = behind[1:]
            items.extend(behind)
            self._encode(items, len(items) - (1 if depth else 0), (*path, name))
            if depth and behind:
                self._fold(items[-1], depth - 1, (*path, name))

    def _fold(self, answer: Any, depth: int, path: tuple[str, ...]) -> None:
        """Encode the complete items of a new struct."""
        for name in answer.declared_fields:
            items = getattr(answer, name)
            if items.__class__ is list and items:
                self._encode(items, len(items) - (1 if depth else 0), (*path, name))
                if depth and isinstance(items[-1], Struct):
                    self._fold(items[-1], depth - 1, (*path, name))

    def _encode(self, items: list[Any], count: int, path: tuple[str, ...]) -> None:
        """Encode the first `count` items of an array, and remove them."""
        if count <= 0 or not self._encodes or not isinstance(items[0], Struct):
            return
        encoder = self._encoders.get(path)
        if encoder is None:
            encoder = self._encoders[path] = ItemEncoder(type(items[0]), self._response_type, self._version)
        self._end(items[0], path)
        for item in items[:count]:
            encoder.add(item)
        del items[:count]

    def _end(self, answer: Any, path: tuple[str, ...]) -> None:
        """Replace the arrays of a complete struct by their encoded items."""
        for name in answer.declared_fields:
            at, items = (*path, name), getattr(answer, name)
            if at in self._encoders:
                self._encode(items, len(items), at)
                setattr(answer, name, self._encoders.pop(at).array())
            elif items.__class__ is list and items and isinstance(items[-1], Struct):
                self._end(items[-1], at)


def _is_refusal(answer: Response | None) -> bool:
    """Whether a request was refused as a whole."""
    return bool(getattr(answer, "error_code", ErrorCode.NONE))


def _has_large_items(answer: Response) -> bool:
    """Whether an item of the answer's arrays contains an array that is larger than a share."""
    arrays = [items for name in answer.declared_fields if isinstance(items := getattr(answer, name), list)]
    items = [item for array in arrays for item in array if isinstance(item, Struct)]
    lists = (getattr(item, name) for item in items for name in item.declared_fields)
    return any(isinstance(each, list) and len(each) > 2 * SHARE for each in lists)


def _throttle(answer: Response, more: Response) -> None:
    if hasattr(answer, "throttle_time_ms"):
        answer.throttle_time_ms = max(answer.throttle_time_ms, getattr(more, "throttle_time_ms", 0))


def _is_cut(last: Any, first: Any) -> bool:
    """Whether the two are parts of one answer: they differ only in their arrays."""
    has_array = False
    for name in last.declared_fields:
        value = getattr(last, name)
        if isinstance(value, list):
            has_array = True
        elif value != getattr(first, name):
            return False
    return has_array
