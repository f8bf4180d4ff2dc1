"""How many files a reader of one request has to open."""

from __future__ import annotations

import asyncio

from tests.kit.request_files import trace

MOST_FILES = {"CreateTopics": 39, "Produce": 10, "Fetch": 16, "OffsetCommit": 27}
"""These figures may only fall."""


def test_a_request_enters_few_files() -> None:
    entered = asyncio.run(trace())
    assert {name: len(files) for name, files in entered.items()} == MOST_FILES
