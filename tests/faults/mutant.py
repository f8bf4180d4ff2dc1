"""A deliberate bug, and the means to plant it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

Patch = pytest.MonkeyPatch


@dataclass(frozen=True)
class Mutant:
    """A bug, and how to plant it."""

    name: str
    scenario: str
    apply: Callable[[Patch], None]


def everywhere(patch: Patch, original: object, replacement: object) -> None:
    """Replace a function in every module that imported it."""
    for module in list(sys.modules.values()):
        if getattr(module, "__name__", "").startswith(("storage.", "tests.storage.", "tests.faults.")):
            for name, value in list(vars(module).items()):
                if value is original:
                    patch.setattr(module, name, replacement)


def nothing(*_arguments: Any, **_options: Any) -> None:
    """Do nothing, instead of the real call."""
