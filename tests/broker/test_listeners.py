"""Listeners that are added, moved and removed while brokers run."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from broker.network.connection import Connection
from broker.network.limits import CREATION_RATE
from client import admin
from client.kafka_client import KafkaClient
from client.producer import Producer
from client.settings import ClientSettings, ProducerSettings
from protocol.config_resources import ConfigResourceType
from protocol.errors import ApiError, ErrorCode
from tests.kit.broker_process import BrokerProcess, free_port
from tests.kit.in_process_cluster import InProcessCluster
from tests.kit.security.certificates import Authority
from tests.kit.waiting import eventually_async, eventually_on_loop

PROTOCOLS = "PLAINTEXT:PLAINTEXT,OTHER:PLAINTEXT,SECURED:SASL_SSL"
NOW_MS = 1_700_000_000_000
SAME_PROTOCOL = (
    "Invalid value org.apache.kafka.common.config.ConfigException: Security protocol cannot be updated for existing "
    "listener ListenerName(OTHER) for configuration Invalid dynamic configuration"
)
"""Kafka's answer to a changed security protocol of a listener."""
BROKER = int(ConfigResourceType.BROKER)


async def alter(client: KafkaClient, broker_id: int, **changes: str | None) -> None:
    """Change keys of a broker, with underscores for dots."""
    keys = {name.replace("_", "."): value for name, value in changes.items()}
    await admin.alter_configs(client, BROKER, str(broker_id), [admin.ConfigChange(*each) for each in keys.items()])


def client_at(address: str, **settings: str) -> KafkaClient:
    values = {"bootstrap.servers": address, **{name.replace("_", "."): value for name, value in settings.items()}}
    return KafkaClient(ClientSettings.parse(values))


async def brokers_at(address: str, **settings: str) -> dict[int, str]:
    """The brokers in the metadata from `address`."""
    async with client_at(address, **settings) as client:
        return {id_: f"{each.host}:{each.port}" for id_, each in (await admin.list_topics(client)).nodes.items()}


async def is_refused(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        _, writer = await asyncio.open_connection(host, int(port))
    except ConnectionRefusedError:
        return True
    writer.close()
    return False


def play(scenario: Callable[[InProcessCluster, KafkaClient], Awaitable[None]], size: int = 2, **settings: str) -> None:
    async def run() -> None:
        short = {"controlled_shutdown_max_retries": "1", "controlled_shutdown_retry_backoff_ms": "1"}
        async with InProcessCluster(size, **short, **settings) as cluster:
            own = [each.serving.coordination.metadata for each in cluster.brokers.values()]
            await eventually_on_loop("both know both", lambda: all(len(each.image.brokers) == size for each in own))
            async with client_at(cluster.address(0)) as client:
                await admin.list_topics(client)
                await scenario(cluster, client)

    asyncio.run(run())


@pytest.mark.parametrize("broker_id", [0, 1])
def test_all_brokers_name_the_new_address_of_one(broker_id: int) -> None:
    async def scenario(cluster: InProcessCluster, client: KafkaClient) -> None:
        before, there = cluster.address(broker_id), f"127.0.0.1:{free_port()}"
        async with client_at(before) as stays:
            await admin.list_topics(stays)
            await alter(client, broker_id, listeners=f"PLAINTEXT://{there}")
            for each in (1 - broker_id, broker_id):
                address = there if each == broker_id else cluster.address(each)
                await eventually_async(
                    f"broker {each} names it",
                    lambda at=address: brokers_at(at),
                    lambda found: found[broker_id] == there,
                )
            assert await is_refused(before)
            assert (await admin.list_topics(stays)).nodes.keys() == {0, 1}

        # A new session also registers the new address, and brokers use it to reach one another.
        metadata = cluster.brokers[1 - broker_id].serving.coordination.metadata
        epoch = metadata.image.brokers[broker_id].epoch
        await cluster.expire_session(broker_id)

        def is_back() -> bool:
            broker = metadata.image.brokers.get(broker_id)
            return broker is not None and broker.epoch > epoch

        await eventually_on_loop("it is registered again", is_back)
        assert metadata.image.address_of(broker_id, "PLAINTEXT") == ("127.0.0.1", int(there.rpartition(":")[2]))
        await admin.create_topic(client, "t", partitions=2, replication_factor=2)
        settings = ProducerSettings.parse({"bootstrap.servers": cluster.bootstrap_servers, "acks": "all"})
        async with Producer(client, settings, lambda: NOW_MS) as producer:
            for partition in range(2):
                await (await producer.send("t", b"v", partition=partition))
        await alter(client, broker_id, listeners=None)
        await eventually_on_loop("the file's listener is back", lambda: cluster.address(broker_id) != there)

    play(scenario)


def test_a_listener_comes_and_goes() -> None:
    async def scenario(cluster: InProcessCluster, client: KafkaClient) -> None:
        plain = cluster.address(0)
        await alter(
            client, 0, listener_security_protocol_map=PROTOCOLS, listeners="PLAINTEXT://127.0.0.1:0,OTHER://127.0.0.1:0"
        )
        ports = cluster.brokers[0].ports
        await eventually_on_loop("it listens", lambda: "OTHER" in ports)
        assert cluster.address(0) == plain
        other = f"127.0.0.1:{ports['OTHER']}"
        await eventually_async("it serves", lambda: brokers_at(other), lambda found: found.get(0) == other)

        with pytest.raises(ApiError, match=re.escape(SAME_PROTOCOL)):
            await alter(client, 0, listener_security_protocol_map=PROTOCOLS.replace("OTHER:", "OTHER:SASL_"))

        host, _, port = other.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        server = cluster.brokers[0]._socket_server
        await eventually_on_loop("it is accepted", lambda: any(c.listener_name == "OTHER" for c in server.connections))
        await alter(client, 0, listeners="PLAINTEXT://127.0.0.1:0")
        assert await reader.read() == b""
        writer.close()
        assert await is_refused(other)
        there = cluster.address(0)
        await eventually_async("it is gone", lambda: brokers_at(there), lambda found: found == {0: there})

    play(scenario, size=1, sasl_enabled_mechanisms="SCRAM-SHA-256")


def test_a_port_in_use_refuses_the_change() -> None:
    async def scenario(cluster: InProcessCluster, client: KafkaClient) -> None:
        before = await brokers_at(cluster.address(0))
        with socket.create_server(("127.0.0.1", 0)) as taken:
            address = f"127.0.0.1:{taken.getsockname()[1]}"
            for listeners in (f"PLAINTEXT://{address}", f"PLAINTEXT://127.0.0.1:0,OTHER://{address}"):
                reason = re.escape(f"Socket server failed to bind to {address}: Address already in use")
                with pytest.raises(ApiError, match=reason) as refused:
                    await alter(client, 0, listeners=listeners, listener_security_protocol_map=PROTOCOLS)
                assert refused.value.error_code is ErrorCode.INVALID_REQUEST
        assert await brokers_at(cluster.address(0)) == before
        configs = await admin.describe_configs(client, [(BROKER, "0")])
        assert {each.name: each.value for each in configs[BROKER, "0"]}["listeners"] == "PLAINTEXT://127.0.0.1:0"

    play(scenario, size=1)


def test_a_port_taken_after_the_check_leaves_all_as_it_was(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(cluster: InProcessCluster, client: KafkaClient) -> None:
        server, before = cluster.brokers[0]._socket_server, cluster.address(0)
        with socket.create_server(("127.0.0.1", 0)) as taken:

            async def unseen(*_: object) -> None:
                """The port is taken after the check."""

            server.check_addresses = unseen  # type: ignore[method-assign]
            await alter(client, 0, listeners=f"PLAINTEXT://127.0.0.1:{taken.getsockname()[1]}")
            logged = "Could not change the listeners, keeping the open ones"
            await eventually_on_loop("it is logged", lambda: logged in caplog.text)
            del server.check_addresses
            await alter(client, 0, log_cleaner_backoff_ms="14000")  # another change is not delayed
            assert await brokers_at(before) == {0: before}
            # Back and forth: the last one wins.
            await alter(client, 0, listeners="PLAINTEXT://localhost:0")
            await alter(client, 0, listeners=None)
        await cluster.brokers[0]._listeners._refreshing.until_done()
        there = cluster.address(0)
        await eventually_async("it is back", lambda: brokers_at(there), lambda found: found == {0: there})

    play(scenario, size=1)


def test_a_new_listener_has_security_of_its_own(tmp_path: Path) -> None:
    authority = Authority()
    trusted = str(authority.write_pem(tmp_path / "trusted.pem"))
    pem = str(authority.issue("broker").write_pem(tmp_path / "broker.pem"))
    security = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": pem,
        "ssl.enabled.protocols": "TLSv1.2,TLSv1.3",
        "sasl.enabled.mechanisms": "PLAIN",
        "plain.sasl.jaas.config": 'org.apache.kafka.common.security.plain.PlainLoginModule required user_a="secret";',
    }
    own = {f"listener.name.secured.{key}": value for key, value in security.items()}
    login = {
        "security_protocol": "SASL_SSL",
        "ssl_truststore_type": "PEM",
        "ssl_truststore_location": trusted,
        "sasl_mechanism": "PLAIN",
        "sasl_jaas_config": "org.apache.kafka.common.security.plain.PlainLoginModule required "
        'username="a" password="secret";',
    }

    async def scenario(cluster: InProcessCluster, client: KafkaClient) -> None:
        both = "PLAINTEXT://127.0.0.1:0,SECURED://127.0.0.1:0"
        opened = {"listeners": both, "listener.security.protocol.map": PROTOCOLS}
        missing = own | {"listener.name.secured.ssl.keystore.location": str(tmp_path / "none.pem")}
        with pytest.raises(ApiError, match=r"none\.pem"):
            await alter(client, 0, **opened, **missing)
        await alter(client, 0, **opened, **own)
        ports = cluster.brokers[0].ports
        await eventually_on_loop("it listens", lambda: "SECURED" in ports)
        address = f"127.0.0.1:{ports['SECURED']}"
        await eventually_async("it serves", lambda: brokers_at(address, **login), lambda found: found[0] == address)

        # Kafka would accept it, for listeners that are opened later.
        with pytest.raises(ApiError, match="Cannot update these configs dynamically"):
            await alter(client, 0, **{"listener.name.secured.ssl.enabled.protocols": "TLSv1.3"})
        with pytest.raises(ApiError, match="Cannot update these configs dynamically"):
            await alter(client, 0, **{"listener.name.secured.ssl.enabled.protocols": None})
        await alter(client, 0, **dict.fromkeys([*opened, *own]))
        await eventually_on_loop("it is closed", lambda: "SECURED" not in ports)

    play(scenario, size=1, **{"password.encoder.secret": "encoder"})


@pytest.mark.parametrize(
    "key", ["max.connection.creation.rate", "listener.name.plaintext.max.connection.creation.rate"]
)
def test_a_rate_of_new_connections_has_effect_while_it_is_set(key: str) -> None:
    async def scenario(cluster: InProcessCluster, client: KafkaClient) -> None:
        server = cluster.brokers[0]._socket_server

        def waiting() -> list[Connection]:
            return [each for each in server.connections if CREATION_RATE in each._paused_reasons]

        await admin.alter_configs(client, BROKER, "0", [admin.ConfigChange(key, "1")])
        host, _, port = cluster.address(0).rpartition(":")
        writers = [(await asyncio.open_connection(host, int(port)))[1] for _ in range(3)]
        await eventually_on_loop("two wait", lambda: len(waiting()) == 2)
        await admin.alter_configs(client, BROKER, "0", [admin.ConfigChange(key, None)])
        await eventually_on_loop("nobody waits", lambda: not waiting(), pause_s=0.01)
        for writer in writers:
            writer.close()

    play(scenario, size=1, quota_window_num="2", quota_window_size_seconds="1")


def test_a_restart_opens_the_same_listeners(tmp_path: Path) -> None:
    broker, moved = BrokerProcess(tmp_path), f"127.0.0.1:{free_port()}"
    before, advertised = broker.address, "localhost:1"

    async def change() -> None:
        async with client_at(broker.address) as client:
            await admin.list_topics(client)
            # Both use one port, one after the other.
            renamed = f"localhost:{before.rpartition(':')[2]}"
            await alter(client, 0, listeners=f"PLAINTEXT://{renamed}")
            await eventually_async("it is there", lambda: brokers_at(before), lambda found: found == {0: renamed})
            own = {"listeners": f"PLAINTEXT://{moved}", "advertised.listeners": f"PLAINTEXT://{advertised}"}
            await alter(client, 0, **own)
        await eventually_async("it has moved", lambda: is_refused(before))

    async def observe() -> None:
        assert await is_refused(before)
        await eventually_async("it tells", lambda: brokers_at(moved), lambda found: found == {0: advertised})

    broker.start()
    try:
        asyncio.run(change())
        asyncio.run(observe())
        assert broker.stop() == 0
        broker.address = moved
        broker.start()
        asyncio.run(observe())
    finally:
        broker.stop()
