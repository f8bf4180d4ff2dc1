"""The generated source of one compiled function: its lines, and the field that each line handles.

A compiled function does not track field names: when it fails, the line number identifies the field. So the hot path
does no bookkeeping.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from types import TracebackType
from typing import Any, Final

SMALL_ARRAY: Final = 17
"""Arrays below this size (mostly replicas) use a prepared `struct`; looking one up by format costs more than using
it.
"""


@cache
def _small_array_methods(method: str, code: str) -> tuple[Callable[..., Any], ...]:
    return tuple(getattr(struct.Struct(f">{count}{code}"), method) for count in range(SMALL_ARRAY))


class SourceWriter:
    """Collects lines and the globals they use; `compile` creates the function."""

    def __init__(self, **names: Any) -> None:
        self.names: dict[str, Any] = dict(names)
        self._lines: list[str] = []
        self._fields: list[str | list[tuple[int, str]]] = []
        self._depth = 0
        self._counter = 0

    def fresh(self, prefix: str) -> str:
        """An unused name for a local variable."""
        self._counter += 1
        return f"{prefix}{self._counter}"

    def constant(self, prefix: str, value: Any) -> str:
        """A global name bound to `value`."""
        name = self.fresh(prefix)
        self.names[name] = value
        return name

    def struct_method(self, method: str, codes: str) -> str:
        """A global name for `struct.Struct('>' + codes).<method>`; the same name for the same codes."""
        name = f"{method}_{codes}".replace("?", "_")
        if name not in self.names:
            self.names[name] = getattr(struct.Struct(">" + codes), method)
        return name

    def small_array_methods(self, method: str, code: str) -> str:
        """A global name for a tuple: at n, the method for n values of `code`, for every n below `SMALL_ARRAY`."""
        name = f"small_{method}_{code}".replace("?", "_")
        if name not in self.names:
            self.names[name] = _small_array_methods(method, code)
        return name

    def line(self, text: str, field: str | list[tuple[int, str]] = "") -> None:
        """Append a line. `field` is the field that it handles, or (bytes from the start, field) pairs for a run of
        fields.
        """
        self._lines.append("    " * self._depth + text)
        self._fields.append(field)

    @contextmanager
    def block(self, header: str, field: str = "") -> Iterator[None]:
        """Append `header` and indent the lines written inside."""
        self.line(header, field)
        self._depth += 1
        yield
        self._depth -= 1

    def compile(self, function: str, filename: str) -> Callable[..., Any]:
        """Run the source and return the function that it defines; the source is kept for error reports."""
        exec(compile("\n".join(self._lines), filename, "exec"), self.names)  # noqa: S102  source is our own
        compiled: Callable[..., Any] = self.names[function]
        return compiled

    def field_at(self, traceback: TracebackType | None, function: Callable[..., Any]) -> str:
        """The field that `function` was handling when it raised the exception of `traceback`."""
        code = function.__code__
        while traceback is not None and traceback.tb_frame.f_code is not code:
            traceback = traceback.tb_next
        if traceback is None:
            return ""
        field = self._fields[traceback.tb_lineno - 1]
        if isinstance(field, str):
            return field
        local = traceback.tb_frame.f_locals
        left = local["e"] - local["p"] if "e" in local else 0
        return next((name for end, name in field if end > left), field[-1][1])
