"""A new topic for each test in the cluster that its module runs."""

from __future__ import annotations

import re

import pytest

from tests.compat.steady_load import create_topics
from tests.kit.broker_cluster import BrokerCluster


@pytest.fixture
def topic_name(cluster: BrokerCluster, request: pytest.FixtureRequest) -> str:
    """A unique name for the test; the cluster is healthy."""
    cluster.await_whole()
    return re.sub(r"\W+", "-", request.node.name).strip("-")


@pytest.fixture
def topic(cluster: BrokerCluster, topic_name: str) -> str:
    """A new topic of three replicas, in a healthy cluster."""
    create_topics(cluster.address, {topic_name: {}}, replication_factor=3)
    return topic_name
