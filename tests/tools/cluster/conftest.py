"""A cluster of both kinds of brokers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.tools.cluster.mixed_brokers import Cluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Both brokers, running."""
    both = Cluster(tmp_path_factory.mktemp("cluster"))
    both.start()
    yield both
    both.stop()
