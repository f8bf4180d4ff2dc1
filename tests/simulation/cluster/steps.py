"""Observe the code under test after each call, without its knowledge."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import wraps
from typing import Any
from unittest.mock import patch


def after_each(owner: type, name: str, look: Callable[[Any, Any], None]) -> AbstractContextManager[object]:
    """Call `look(self, arguments)` after each successful call of the method `name`."""
    original = getattr(owner, name)

    @wraps(original)
    def step(self: Any, *given: Any, **named: Any) -> Any:
        result = original(self, *given, **named)
        look(self, given)
        return result

    return patch.object(owner, name, step)
