"""Collect worlds with the tests that made them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.simulation.seeds import collect_garbage


@pytest.fixture(scope="module", autouse=True)
def _no_worlds() -> Iterator[None]:
    """Release the remains of seeds silently: pytest would report the coroutines of killed processes."""
    yield
    collect_garbage()
