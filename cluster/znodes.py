"""Kafka's znodes: their paths, and encoders and decoders of their JSON payloads (Kafka class `ZkData`).

Encoders order keys as Apache Kafka 3.9.1 does, so that payloads can be compared byte for byte. Decoders ignore unknown
keys, and raise `ZnodeFormatError` with the path for anything malformed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from cluster.eligible_leaders import EligibleLeaders
from protocol.topic_partition import TopicPartition
from protocol.uuids import ZERO_UUID, Uuid
from protocol.value import Value, field

T = TypeVar("T")

CLUSTER = "/cluster"
CLUSTER_ID = "/cluster/id"
BROKER_IDS = "/brokers/ids"
BROKER_TOPICS = "/brokers/topics"
BROKER_SEQUENCE = "/brokers/seqid"
"""Each generated broker id is a new version of this node."""
CONTROLLER = "/controller"
CONTROLLER_EPOCH = "/controller_epoch"
CONFIG_CHANGES = "/config/changes"
LOG_DIR_EVENTS = "/log_dir_event_notification"
DELETE_TOPICS = "/admin/delete_topics"
REASSIGN_PARTITIONS = "/admin/reassign_partitions"
"""Requested reassignments; the controller removes each partition once it is complete."""
PREFERRED_ELECTION = "/admin/preferred_replica_election"
"""Partitions to elect the preferred leader for; the controller deletes the node after the attempt."""
PRODUCER_ID_BLOCK = "/latest_producer_id_block"
FEATURE = "/feature"
LOGS_ADOPTED = "/odradek_logs_adopted"
"""Odradek only, in its embedded tree: the logs found on disk were considered once, and never are again."""
SCRAM_SECRET = "/odradek_scram_secret"  # noqa: S105  a path
"""Odradek only: the secret for deriving the salts of users that do not exist. Only brokers may read it."""
TRUNCATED_REPLICAS = "odradek_cut_replicas"
PREVIOUS_EPOCH = "odradek_previous_epoch"
"""Odradek's extra keys in a broker's registration. Kafka ignores them."""

PERSISTENT_PATHS = (
    "/consumers",
    "/brokers",
    BROKER_IDS,
    BROKER_TOPICS,
    "/config",
    CONFIG_CHANGES,
    "/admin",
    DELETE_TOPICS,
    BROKER_SEQUENCE,
    "/isr_change_notification",
    PRODUCER_ID_BLOCK,
    LOG_DIR_EVENTS,
    "/config/topics",
    "/config/clients",
    "/config/users",
    "/config/brokers",
    "/config/ips",
)
"""Nodes that a broker creates at its first start, parents first, all without data."""

DEFAULT_ENTITY = "<default>"
NO_LEADER = -1
RECOVERED, RECOVERING = 0, 1
"""Leader recovery states (KIP-704)."""
INITIAL_CONTROLLER_EPOCH = 0


_SECRET = ("/config/", "/delegation_token/")
"""Prefixes of nodes that may hold keys and passwords."""
_MOST_SHOWN = 200


class ZnodeFormatError(Exception):
    """A znode with content that this broker cannot parse. The message names the path, and quotes the beginning of the
    content unless it may be secret.
    """

    def __init__(self, path: str, reason: Exception | str, data: bytes | None = None) -> None:
        # Not repr(): for a UnicodeDecodeError it contains all of the content.
        text = reason if isinstance(reason, str) else f"{type(reason).__name__}: {reason}"
        shown = "" if path.startswith(_SECRET) else f": {(data or b'')[:_MOST_SHOWN]!r}"
        super().__init__(f"{path} cannot be understood ({text}){shown}")
        self.path = path


def broker_path(broker_id: int) -> str:
    """Registration of a broker."""
    return f"{BROKER_IDS}/{broker_id}"


def topic_path(topic: str) -> str:
    """Assignment of a topic."""
    return f"{BROKER_TOPICS}/{topic}"


def partitions_path(topic: str) -> str:
    """Parent of a topic's partitions."""
    return f"{BROKER_TOPICS}/{topic}/partitions"


def partition_path(topic: str, partition: int) -> str:
    """Parent of a partition's state."""
    return f"{BROKER_TOPICS}/{topic}/partitions/{partition}"


def partition_state_path(topic: str, partition: int) -> str:
    """Leader and in-sync replicas of a partition."""
    return f"{BROKER_TOPICS}/{topic}/partitions/{partition}/state"


def delete_topic_path(topic: str) -> str:
    """Marks a topic for deletion."""
    return f"{DELETE_TOPICS}/{topic}"


def config_path(entity_type: str, name: str) -> str:
    """Configuration of an entity; `entity_type` is "topics", "brokers", "users", "clients" or "ips"."""
    return f"/config/{entity_type}/{name}"


class Endpoint(Value):
    """The address of a listener, as sent to clients."""

    listener_name: str
    host: str
    port: int
    security_protocol: str


class BrokerRegistration(Value):
    """/brokers/ids/<id>, version 5. `truncated_replicas` (partitions by topic) and `previous_epoch` are Odradek's; see
    `BrokerImage`.
    """

    broker_id: int
    endpoints: tuple[Endpoint, ...]
    rack: str | None = None
    timestamp_ms: int = 0
    jmx_port: int = -1
    truncated_replicas: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    previous_epoch: int | None = None

    def encode(self) -> bytes:
        """The payload. `host` and `port` repeat the first PLAINTEXT endpoint for readers of old formats."""
        plaintext = next((each for each in self.endpoints if each.security_protocol == "PLAINTEXT"), None)
        value: dict[str, Any] = {
            "features": {},
            "listener_security_protocol_map": {each.listener_name: each.security_protocol for each in self.endpoints},
            "endpoints": [f"{each.listener_name}://{_bracketed(each.host)}:{each.port}" for each in self.endpoints],
            "jmx_port": self.jmx_port,
            "port": plaintext.port if plaintext else -1,
            "host": plaintext.host if plaintext else None,
            "version": 5,
            "timestamp": str(self.timestamp_ms),
        }
        if self.rack is not None:
            value["rack"] = self.rack
        if self.truncated_replicas:
            value[TRUNCATED_REPLICAS] = {
                topic: list(partitions) for topic, partitions in self.truncated_replicas.items()
            }
        if self.previous_epoch is not None:
            value[PREVIOUS_EPOCH] = self.previous_epoch
        return _dump(value)

    @classmethod
    def decode(cls, broker_id: int, data: bytes | None) -> BrokerRegistration:
        """Parse a payload of version 4 or 5, the versions with endpoints and a listener map."""

        def build(value: dict[str, Any]) -> BrokerRegistration:
            protocols = value["listener_security_protocol_map"]
            endpoints = tuple(_endpoint(text, protocols) for text in value["endpoints"])
            timestamp = int(value.get("timestamp", 0))
            truncated = {
                str(topic): tuple(map(int, numbers)) for topic, numbers in value.get(TRUNCATED_REPLICAS, {}).items()
            }
            jmx_port, previous = int(value.get("jmx_port", -1)), value.get(PREVIOUS_EPOCH)
            previous = None if previous is None else int(previous)
            return cls(broker_id, endpoints, value.get("rack"), timestamp, jmx_port, truncated, previous)

        return _parse(broker_path(broker_id), data, build)


class TopicAssignment(Value):
    """/brokers/topics/<topic>, version 3: the replicas of each partition. The id is zero if written before Kafka
    2.8.
    """

    topic_id: Uuid
    partitions: Mapping[int, tuple[int, ...]]
    adding_replicas: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    removing_replicas: Mapping[int, tuple[int, ...]] = field(default_factory=dict)

    def encode(self) -> bytes:
        """The payload."""
        value: dict[str, Any] = {"partitions": _by_text(self.partitions)}
        if self.topic_id != ZERO_UUID:
            value["topic_id"] = str(self.topic_id)
        value["adding_replicas"] = _by_text(self.adding_replicas)
        value["removing_replicas"] = _by_text(self.removing_replicas)
        value["version"] = 3
        return _dump(value)

    @classmethod
    def decode(cls, topic: str, data: bytes | None) -> TopicAssignment:
        """Parse a payload of version 1 to 3. Partitions must be numbered from 0, and have replicas."""

        def build(value: dict[str, Any]) -> TopicAssignment:
            topic_id = Uuid.from_text(value["topic_id"]) if "topic_id" in value else ZERO_UUID
            partitions, adding, removing = (
                {int(partition): tuple(map(_int32, replicas)) for partition, replicas in value.get(key, {}).items()}
                for key in ("partitions", "adding_replicas", "removing_replicas")
            )
            if not partitions or sorted(partitions) != list(range(len(partitions))):
                raise ValueError("the partitions are not numbered from 0")
            if not all(partitions.values()):
                raise ValueError("a partition has no replicas")
            return cls(topic_id, dict(sorted(partitions.items())), adding, removing)

        return _parse(topic_path(topic), data, build)


class PartitionState(Value):
    """/brokers/topics/<topic>/partitions/<partition>/state, version 1 (Kafka class `TopicPartitionStateZNode`)."""

    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    controller_epoch: int
    leader_recovery_state: int = 0
    eligible: EligibleLeaders | None = None

    def encode(self) -> bytes:
        """The payload."""
        recovery = f',"leader_recovery_state":{self.leader_recovery_state}' if self.leader_recovery_state else ""
        eligible = "" if self.eligible is None else f",{self.eligible.encode()}"
        # Written by hand: a topic has thousands of these, and a formatted string takes a fifth of json.dumps' time.
        return (
            f'{{"controller_epoch":{self.controller_epoch},"leader":{self.leader},"version":1,'
            f'"leader_epoch":{self.leader_epoch},"isr":[{",".join(map(str, self.isr))}]{recovery}{eligible}}}'
        ).encode()

    @classmethod
    def decode(cls, topic: str, partition: int, data: bytes | None) -> PartitionState:
        """Parse a payload."""
        return _parse(
            partition_state_path(topic, partition),
            data,
            lambda value: cls(
                _int32(value["leader"]),
                _int32(value["leader_epoch"]),
                tuple(map(_int32, value["isr"])),
                _int32(value["controller_epoch"]),
                int(value.get("leader_recovery_state", 0)),
                EligibleLeaders.decode(value),
            ),
        )


def encode_controller(broker_id: int, timestamp_ms: int) -> bytes:
    """/controller, version 2."""
    return _dump({"version": 2, "brokerid": broker_id, "timestamp": str(timestamp_ms), "kraftControllerEpoch": -1})


def decode_controller(data: bytes | None) -> int:
    """The controller's broker id."""
    return _parse(CONTROLLER, data, lambda value: int(value["brokerid"]))


def encode_controller_epoch(epoch: int) -> bytes:
    """/controller_epoch."""
    return str(epoch).encode()


def decode_controller_epoch(data: bytes | None) -> int:
    """The epoch, at least 0."""
    try:
        return int(data or b"")
    except ValueError:
        raise ZnodeFormatError(CONTROLLER_EPOCH, "not a number", data) from None


def encode_cluster_id(cluster_id: str) -> bytes:
    """/cluster/id, whose version is a string."""
    return _dump({"version": "1", "id": cluster_id})


def decode_cluster_id(data: bytes | None) -> str:
    """The cluster's id, 22 characters."""
    return _parse(CLUSTER_ID, data, lambda value: str(value["id"]))


def encode_config(config: Mapping[str, str]) -> bytes:
    """/config/<type>/<name>."""
    return _dump({"version": 1, "config": dict(config)})


def decode_config(path: str, data: bytes | None) -> dict[str, str]:
    """The overrides of an entity; empty if the node is."""
    if not data:
        return {}
    return _parse(path, data, lambda value: {str(key): str(each) for key, each in value["config"].items()})


def encode_config_change(entity_path: str) -> bytes:
    """/config/changes/config_change_<n>, version 2; `entity_path` is, for example, "topics/orders"."""
    return _dump({"version": 2, "entity_path": entity_path})


def decode_config_change(path: str, data: bytes | None) -> str:
    """The path of the changed entity; version 1 has type and name in separate fields."""

    def build(value: dict[str, Any]) -> str:
        if int(value["version"]) == 1:
            return f"{value['entity_type']}/{value['entity_name']}"
        return str(value["entity_path"])

    return _parse(path, data, build)


def encode_log_dir_event(broker_id: int) -> bytes:
    """/log_dir_event_notification/log_dir_event_<n>: the broker cannot use some of its replicas."""
    return _dump({"version": 1, "broker": broker_id, "event": 1})


def decode_log_dir_event(path: str, data: bytes | None) -> int:
    """The broker with the failed log directory."""
    return _parse(path, data, lambda value: int(value["broker"]))


def encode_reassignments(targets: Mapping[TopicPartition, Iterable[int]]) -> bytes:
    """/admin/reassign_partitions: the target replicas of each partition."""
    partitions = [
        {"topic": name.topic, "partition": name.partition, "replicas": list(replicas)}
        for name, replicas in targets.items()
    ]
    return _dump({"version": 1, "partitions": partitions})


def decode_reassignments(data: bytes | None) -> dict[TopicPartition, tuple[int, ...]]:
    """The target replicas of each partition."""
    return _parse(
        REASSIGN_PARTITIONS,
        data,
        lambda value: {_named(each): tuple(map(int, each["replicas"])) for each in value["partitions"]},
    )


def decode_preferred_election(data: bytes | None) -> list[TopicPartition]:
    """The partitions to elect the preferred leader for."""
    return _parse(PREFERRED_ELECTION, data, lambda value: [_named(each) for each in value["partitions"]])


def _named(entry: Mapping[str, Any]) -> TopicPartition:
    return TopicPartition(str(entry["topic"]), int(entry["partition"]))


class ProducerIdBlock(Value):
    """/latest_producer_id_block: `broker_id` owns the ids from `first` to `last`, inclusive."""

    broker_id: int
    first: int
    last: int

    def encode(self) -> bytes:
        """The payload, with numbers as strings."""
        return _dump(
            {"version": 1, "broker": self.broker_id, "block_start": str(self.first), "block_end": str(self.last)}
        )

    @classmethod
    def decode(cls, data: bytes) -> ProducerIdBlock:
        """Parse a payload."""
        return _parse(
            PRODUCER_ID_BLOCK,
            data,
            lambda value: cls(int(value["broker"]), int(value["block_start"]), int(value["block_end"])),
        )


def encode_feature() -> bytes:
    """/feature of a cluster without finalized features."""
    return _dump({"features": {}, "version": 2, "status": 1})


def _dump(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def parse_json(data: bytes) -> Any:
    """Parse JSON. Raises RecursionError, and ValueError, also for strings that UTF-8 cannot encode."""
    value = json.loads(data.decode())
    if b"\\u" in data:
        # A lone surrogate would fail later, when written back or sent to a client.
        json.dumps(value, ensure_ascii=False).encode()
    return value


def _parse(path: str, data: bytes | None, build: Callable[[dict[str, Any]], T]) -> T:
    try:
        value = parse_json(data or b"")
        if not isinstance(value, dict):
            raise TypeError("not a JSON object")
        return build(value)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise ZnodeFormatError(path, error, data) from error


def _int32(value: Any) -> int:
    """Raise unless the number fits an int32 field of the protocol."""
    number = int(value)
    if not -(2**31) <= number < 2**31:
        raise ValueError(f"{number} does not fit in 32 bits")
    return number


def _by_text(replicas: Mapping[int, Iterable[int]]) -> dict[str, list[int]]:
    return {str(partition): list(brokers) for partition, brokers in replicas.items()}


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _endpoint(text: str, protocols: Mapping[str, str]) -> Endpoint:
    listener, _, address = text.partition("://")
    host, _, port = address.rpartition(":")
    return Endpoint(listener, host.removeprefix("[").removesuffix("]"), int(port), protocols[listener])
