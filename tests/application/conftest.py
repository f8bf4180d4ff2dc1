"""The shop on the broker of each test."""

from __future__ import annotations

import pytest

import odradek
from tests.application.opened_shop import OpenedShop


@pytest.fixture
def shop(kafka: odradek.Broker | odradek.Cluster) -> OpenedShop:
    """A shop that has not begun to work."""
    return OpenedShop(kafka)
