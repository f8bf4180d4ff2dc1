"""Quotas of a cluster of Apache Kafka and Odradek: set at either, they are stored in the same way and apply at both."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

from protocol.errors import ErrorCode
from tests.compat.test_mixed_cluster import APACHE, Mixed, mixed
from tests.kit.wire_client import WireClient
from tests.parity.limited_clients import Changes, Parts, alter_request, written

pytestmark = [pytest.mark.slow, pytest.mark.java, pytest.mark.timeout(300)]

USER = "ANONYMOUS"
"""Every client of a plain-text listener."""
IPS = {"apache_": "10.0.0.1", "odradek": "10.0.0.2"}
KEPT: list[tuple[Parts, Changes]] = [
    ({"user": "SETTER"}, {"producer_byte_rate": 1024.0, "request_percentage": 12.5}),
    ({"user": "CN=SETTER, O=a/b"}, {"consumer_byte_rate": 1e10, "controller_mutation_rate": 1e7}),
    ({"client-id": "SETTER"}, {"controller_mutation_rate": 0.1, "producer_byte_rate": 2.0**62}),
    ({"user": "SETTER", "client-id": "50% *"}, {"request_percentage": 1e-9}),
    ({"user": "SETTER", "client-id": None}, {"request_percentage": 100.0}),
    ({"ip": "IP"}, {"connection_creation_rate": 77.0}),
]


def asked(address: str, client_id: str) -> WireClient:
    host, _, port = address.rpartition(":")
    return WireClient(host, int(port), client_id)


def set_quotas(address: str, *entries: tuple[Parts, Changes]) -> None:
    with asked(address, "admin") as client:
        answer: Any = client.ask(alter_request(*entries), 1)
    assert [entry.error_code for entry in answer.entries] == [ErrorCode.NONE] * len(entries), answer


def named(setter: str) -> list[tuple[Parts, Changes]]:
    """Names of entities that belong to one of the brokers."""

    def name(text: str | None) -> str | None:
        return None if text is None else text.replace("SETTER", setter).replace("IP", IPS[setter])

    return [({kind: name(text) for kind, text in parts.items()}, changes) for parts, changes in KEPT]


def kept(zookeeper: KazooClient, setter: str) -> dict[str, Any]:
    """The nodes of these entities, and their notices, without the setter's names and numbers."""

    def below(path: str) -> list[str]:
        paths = [path]
        for child in zookeeper.get_children(path):
            paths += below(f"{path}/{child}")
        return paths

    def erased(text: str) -> str:
        return text.replace(setter, "").replace(IPS[setter], "")

    def read(path: str) -> Any:
        data = zookeeper.get(path)[0]
        return json.loads(erased(data.decode())) if data else data

    def is_own(text: str) -> bool:
        return setter in text or text.endswith(IPS[setter])

    nodes = [path for kind in ("users", "clients", "ips") for path in below(f"/config/{kind}") if is_own(path)]
    names = sorted(zookeeper.get_children("/config/changes"))
    notices = [json.loads(zookeeper.get(f"/config/changes/{name}")[0]) for name in names]
    own = [erased(notice["entity_path"]) for notice in notices if is_own(notice["entity_path"])]
    assert all(notice["version"] == 2 and len(notice) == 2 for notice in notices)
    return {**{erased(path): read(path) for path in nodes}, "notices": own}


def check_that_it_counts(at: str, elsewhere: str, client_id: str) -> float:
    """Set, change and remove a quota at one broker, and check its effect at the other; returns the longest delay."""
    longest_s = 0.0
    parts: Parts = {"user": USER, "client-id": client_id}
    for limit, is_throttled in ((1000.0, True), (1e12, False), (1.0, True), (None, False)):
        set_quotas(at, (parts, {"producer_byte_rate": limit}))
        began_s = time.monotonic()
        while True:
            with asked(elsewhere, client_id) as client:
                answer: Any = client.ask(written("not-there", 20_000), 9)
            longest_s = max(longest_s, time.monotonic() - began_s)
            if (answer.throttle_time_ms > 0) == is_throttled:
                break
            assert longest_s < 10, f"{limit} does not count"
    return longest_s


def test_quotas_set_at_either_count_at_both(tmp_path: Path) -> None:
    with mixed(tmp_path, APACHE) as cluster:
        addresses = {"apache_": cluster.apache_address, "odradek": cluster.odradek.address}
        check_payloads(cluster, addresses)
        for at, elsewhere in (("apache_", "odradek"), ("odradek", "apache_"), ("odradek", "odradek")):
            longest_s = check_that_it_counts(addresses[at], addresses[elsewhere], f"{at}-{elsewhere}")
            print(f"set at {at}, it counts at {elsewhere} after {longest_s * 1000:.0f} ms")
            assert longest_s < 3, "a second, and what a busy machine needs"


def check_payloads(cluster: Mixed, addresses: dict[str, str]) -> None:
    """Both write the same payloads, and read each other's."""
    zookeeper = KazooClient(cluster.zookeeper_address)
    zookeeper.start()
    try:
        for setter, address in addresses.items():
            set_quotas(address, *named(setter))
        assert kept(zookeeper, "odradek") == kept(zookeeper, "apache_")
        assert len(kept(zookeeper, "odradek")) > len(KEPT)
        for setter, other in (("apache_", "odradek"), ("odradek", "apache_")):
            set_quotas(addresses[other], *((parts, dict.fromkeys(changes)) for parts, changes in named(setter)))
        for setter in addresses:
            left = kept(zookeeper, setter)
            assert len(left.pop("notices")) == 2 * len(KEPT)
            assert not left, "nodes without quotas are taken away, and those above them"
    finally:
        zookeeper.stop()
        zookeeper.close()
