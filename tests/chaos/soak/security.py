"""SASL_SSL between brokers and with their clients, and TLS to ZooKeeper. Certificates, ACLs and quotas change during
faults.
"""

from __future__ import annotations

import itertools
import os
import random
import socket
import ssl
import threading
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourcePatternType,
    ResourceType,
)

from protocol.errors import ErrorCode
from protocol.messages.quotas import AlterClientQuotasRequest, AlterClientQuotasResponse
from security.authorization import ACL_AUTHORIZER
from tests.chaos.soak.changes import PATIENCE_S, REFUSALS
from tests.kit.broker_cluster import BrokerCluster
from tests.kit.broker_process import free_port
from tests.kit.controller.reassigning import ask_controller
from tests.kit.security.certificates import Authority, Identity
from tests.kit.waiting import eventually
from tests.kit.zookeeper import new_zookeeper, tls_listener, tls_session
from tests.kit.zookeeper_process import ZookeeperProcess

T = TypeVar("T")
PAUSE_S = 3.0
MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
PASSWORDS = {"broker": "brokers' own", "alice": "alice's", "bob": "bob's"}
QUOTAS_B_S = (100_000.0, 1_000_000.0, None)
"""Alice's quotas on each broker, with None to remove the quota."""
WATCHED_TOPIC = "steady"
"""The topic that bob may describe at times."""


class SecuredTree(NamedTuple):
    """A ZooKeeper to start, and the settings of its brokers."""

    new_server: Callable[..., ZookeeperProcess]
    settings: dict[str, str]


class Security:
    """Certificates, users and settings. Plain-text clients are super users: the test checks the run through them."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._authority = Authority()
        self.trusted = str(self._authority.write_pem(directory / "trusted.pem"))
        """The certificate that clients trust."""
        users = " ".join(f'user_{name}="{password}"' for name, password in PASSWORDS.items())
        own = f'username="broker" password="{PASSWORDS["broker"]}"'
        self.settings = {
            "security.inter.broker.protocol": "SASL_SSL",
            "sasl.enabled.mechanisms": "PLAIN",
            "sasl.mechanism.inter.broker.protocol": "PLAIN",
            "listener.name.sasl_ssl.plain.sasl.jaas.config": f"{MODULE} required {own} {users};",
            "connections.max.reauth.ms": "20000",
            "ssl.keystore.type": "PEM",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": self.trusted,
            "authorizer.class.name": ACL_AUTHORIZER,
            "super.users": "User:broker;User:ANONYMOUS",
        }
        self.addresses: dict[int, str] = {}
        """The address of each broker's secured listener."""
        self._stores: dict[int, list[Path]] = {}
        """The key stores that each broker may be using: more than one after a change whose outcome is unknown."""
        self._serials: dict[int, int] = {}
        self._numbers = itertools.count()

    def tree(self, host: str) -> SecuredTree:
        """A ZooKeeper on that host which requires client certificates, and whose znodes belong to the brokers."""
        port = free_port()
        server = self._authority.issue("zookeeper", hosts=(host,)).write_pem(self._directory / "zookeeper.pem")
        broker = self._authority.issue("broker").write_pem(self._directory / "session.pem")
        listener = tls_listener(port, server, self.trusted, host=host)
        settings = {"zookeeper.set.acl": "true", **tls_session(f"{host}:{port}", broker, self.trusted)}
        return SecuredTree(partial(new_zookeeper, settings=listener), settings)

    def attach(self, cluster: BrokerCluster) -> None:
        """Give each broker a listener with a certificate. The last line of a duplicate key wins."""
        for number, broker in cluster.brokers.items():
            host = broker.address.rpartition(":")[0]
            self.addresses[number] = f"{host}:{free_port()}"
            store = self._directory / f"broker-{number}.pem"
            self._stores[number] = [store]
            self.renew_file(number)
            listeners = f"PLAINTEXT://{broker.address},SASL_SSL://{self.addresses[number]}"
            with (broker.output.parent / "server.properties").open("a") as properties:
                properties.write(f"listeners={listeners}\nssl.keystore.location={store}\n")

    def client(self, user: str) -> dict[str, str]:
        """Settings of librdkafka."""
        return {
            "bootstrap.servers": ",".join(self.addresses.values()),
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": self.trusted,
            "sasl.mechanism": "PLAIN",
            "sasl.username": user,
            "sasl.password": PASSWORDS[user],
        }

    def _new(self, number: int) -> Identity:
        return self._authority.issue("broker", hosts=(self.addresses[number].rpartition(":")[0],))

    def renew_file(self, number: int) -> None:
        """Replace the certificate file."""
        self._write(number, self._new(number))

    def renew_by_name(self, number: int, admin: AdminClient) -> None:
        """Write a new certificate to a new file and configure the broker with its name. Raises one of `REFUSALS`."""
        path, identity = self._directory / f"broker-{number}-{next(self._numbers)}.pem", self._new(number)
        identity.write_pem(path)
        key = "listener.name.sasl_ssl.ssl.keystore.location"
        entry = ConfigEntry(key, str(path), incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ConfigResource.Type.BROKER, str(number), incremental_configs=[entry])
        try:
            for future in admin.incremental_alter_configs([resource], request_timeout=PATIENCE_S).values():
                future.result(2 * PATIENCE_S)
        except REFUSALS:
            # The broker may use either file.
            self._stores[number].append(path)
            self._write(number, identity)
            raise
        self._stores[number] = [path]
        self._serials[number] = identity.certificate.serial_number

    def _write(self, number: int, identity: Identity) -> None:
        """Write every file that the broker may use, as certificate renewal tools do."""
        for path in self._stores[number]:
            os.replace(identity.write_pem(path.with_suffix(".fresh")), path)
        self._serials[number] = identity.certificate.serial_number

    def shown_serial(self, number: int) -> int:
        """Serial number of the certificate that a broker presents to clients which trust its authority. Raises
        OSError.
        """
        host, _, port = self.addresses[number].rpartition(":")
        context = ssl.create_default_context(cafile=self.trusted)
        with (
            socket.create_connection((host, int(port)), timeout=5) as connected,
            context.wrap_socket(connected, server_hostname=host) as secured,
        ):
            shown = secured.getpeercert()
            assert shown is not None
            return int(str(shown["serialNumber"]), 16)

    def await_certificates(self) -> None:
        """Wait until every broker presents the newest certificate that it was given."""
        for number, serial in self._serials.items():
            eventually(
                f"the newest certificate of broker {number}",
                lambda number=number: self.shown_serial(number),
                lambda shown, serial=serial: shown == serial,
                not_yet=(OSError,),
                pause_s=0.3,
            )


class SecurityOfficer(threading.Thread):
    """Renews certificates, grants and revokes rights, and sets quotas, one every few seconds."""

    def __init__(self, cluster: BrokerCluster, security: Security, seed: int) -> None:
        super().__init__(daemon=True)
        self.changes: Counter[str] = Counter()
        """The changes that the cluster applied, by kind."""
        self.refused = 0
        self.failure: Exception | None = None
        self.bob_may: bool | None = False
        """Whether bob may describe the topic, or None if unknown."""
        self._cluster = cluster
        self._security = security
        self._random = random.Random(seed)
        self._stopping = threading.Event()
        self._idle = threading.Lock()

    def run(self) -> None:
        kinds: dict[str, Callable[[], None]] = {
            "certificate files": self._renew_file,
            "certificates by kafka-configs": self._renew_by_name,
            "ACLs": self._change_acl,
            "quotas": self._change_quota,
        }
        while not self._stopping.wait(self._random.uniform(0, 2 * PAUSE_S)):
            kind = self._random.choice(list(kinds))
            with self._idle:
                try:
                    kinds[kind]()
                except REFUSALS:
                    self.refused += 1
                except Exception as error:  # noqa: BLE001  the run is to see it
                    self.failure = error
                    return
                else:
                    self.changes[kind] += 1

    def stop(self) -> None:
        """No more changes."""
        self._stopping.set()
        self.join()

    def _admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self._cluster.address, "log_level": 0})

    def _renew_file(self) -> None:
        self._security.renew_file(self._random.choice(list(self._cluster.brokers)))

    def _renew_by_name(self) -> None:
        self._security.renew_by_name(self._random.choice(list(self._cluster.brokers)), self._admin())

    def _change_acl(self) -> None:
        wanted, self.bob_may = not self.bob_may, None
        what = ("bob", ResourceType.TOPIC, WATCHED_TOPIC, AclOperation.DESCRIBE)
        admin = self._admin()
        asked: dict[Any, Any] = (
            admin.create_acls([_acl(AclBinding, *what)])
            if wanted
            else admin.delete_acls([_acl(AclBindingFilter, *what)])
        )
        for future in asked.values():
            future.result(2 * PATIENCE_S)
        self.bob_may = wanted

    def _change_quota(self) -> None:
        rate = self._random.choice(QUOTAS_B_S)
        operation = AlterClientQuotasRequest.OpData(key="producer_byte_rate", value=rate or 0.0, remove=rate is None)
        user = AlterClientQuotasRequest.EntityData(entity_type="user", entity_name="alice")
        entry = AlterClientQuotasRequest.EntryData(entity=[user], ops=[operation])
        request = AlterClientQuotasRequest(entries=[entry], validate_only=False)
        response = ask_controller(self._cluster.address, request, 1, PATIENCE_S)
        assert isinstance(response, AlterClientQuotasResponse)
        assert response.entries[0].error_code == ErrorCode.NONE, response

    def check(self) -> None:
        """Check, in a cluster without faults, that each broker uses its latest certificate and knows bob's rights."""
        assert self.failure is None, repr(self.failure)
        with self._idle:
            self._security.await_certificates()
            if self.bob_may is None:
                return
            wanted = None if self.bob_may else "TOPIC_AUTHORIZATION_FAILED"
            admin = AdminClient({**self._security.client("bob"), "log_level": 0})
            for number in self._cluster.brokers:
                eventually(
                    f"what bob may at broker {number} or its peers: {self.bob_may}",
                    lambda: admin.list_topics(WATCHED_TOPIC, timeout=5).topics[WATCHED_TOPIC].error,
                    lambda error: (None if error is None else error.name()) == wanted,
                    not_yet=(KafkaException,),
                    pause_s=0.2,
                )


def grant_alice(address: str) -> None:
    """Grant alice everything that producers need."""
    admin = AdminClient({"bootstrap.servers": address})
    bindings = [
        _acl(AclBinding, "alice", kind, "*", AclOperation.ALL)
        for kind in (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID)
    ]
    for future in admin.create_acls(bindings).values():
        future.result(30)


def _acl(made: Callable[..., T], user: str, kind: ResourceType, name: str, operation: AclOperation) -> T:
    """An AclBinding that allows the user something, or the filter for it."""
    return made(kind, name, ResourcePatternType.LITERAL, f"User:{user}", "*", operation, AclPermissionType.ALLOW)
