"""Ensembles that lack some of the requests that brokers would use."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from unittest.mock import patch

import pytest

from broker.zookeeper.kazoo_translation import MultiRead
from tests.kit.coordination_fixtures import in_loop
from tests.kit.zookeeper import new_session, real_zookeeper, served_tree
from tests.kit.zookeeper_process import ZookeeperProcess


@pytest.fixture(scope="module", params=["served tree", pytest.param("ZooKeeper", marks=pytest.mark.java)])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZookeeperProcess]:
    serve = served_tree if request.param == "served tree" else real_zookeeper
    with serve(tmp_path_factory.mktemp("server")) as process:
        yield process


@in_loop
async def test_an_ensemble_that_reads_one_node_at_a_time(server: ZookeeperProcess) -> None:
    """Like ZooKeeper 3.5, which answers an unknown request type with an error and closes the connection."""
    session = new_session(f"{server.address}/{secrets.token_hex(4)}")
    await session.connect()
    _, stat = await session.create("/a", b"1")
    unknown = 23
    with patch.object(MultiRead, "type", unknown):
        assert await session.get_each(["/a", "/none"]) == [(b"1", stat), None]
    await session.close()
