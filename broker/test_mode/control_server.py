"""The control API of a broker under test, as JSON over HTTP on loopback, behind a token.

Each handler declares its request. `GET /v1/openapi.json` has all of them in OpenAPI, docs/control-api.md in a table.
Keys, values and headers are Base64. Errors of Kafka are status 409 with `error` and `error_name`.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import math
from collections.abc import Awaitable, Callable, Iterator
from http import HTTPStatus
from typing import Any, Final, TypeVar

from broker.coordinators.coordinator_service import coordinator_partition
from broker.network.registry import HandlerRegistry, RequestContext
from broker.server import KafkaServer
from broker.test_mode.api_description import (
    ControlApi,
    Given,
    Schema,
    array,
    boolean,
    integer,
    mapping,
    nullable,
    number,
    operation,
    optional,
    struct,
    text,
)
from broker.test_mode.broken_replies import BrokenReplies
from broker.test_mode.cluster_requests import ClusterRequests, raise_error
from broker.test_mode.cut_network import Links
from broker.test_mode.fault_rules import FAULT, NEW_FAULT, FaultError
from broker.test_mode.faulty_disk import FaultyFileSystem
from broker.test_mode.held_network import HeldNetwork
from broker.test_mode.http_connection import HttpConnection, HttpError, HttpRequest
from broker.test_mode.interception import CONTROL, TAPE_REQUESTS, Interception, errors_in, resolved
from broker.test_mode.snapshots import await_replicas, meeting, take_snapshot
from broker.test_mode.virtual_time import TimeMachine
from cluster.replication.partition import Partition
from cluster.replication.reads import IsolationLevel
from environment.slices import in_slices
from protocol.config_resources import ConfigResourceType
from protocol.errors import ApiError, ErrorCode
from protocol.messages.configs import IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse
from protocol.messages.group_admin import (
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    ListGroupsRequest,
    ListGroupsResponse,
)
from protocol.messages.group_offsets import OffsetFetchRequest, OffsetFetchResponse
from protocol.messages.groups import ConsumerProtocolAssignment
from protocol.messages.produce import ProduceRequest, ProduceResponse
from protocol.messages.security import AlterUserScramCredentialsRequest, AlterUserScramCredentialsResponse
from protocol.messages.topics import (
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from protocol.records.batch import RecordBatch, read_batches
from protocol.records.record_builder import build_batch
from protocol.records.record_codec import Record
from protocol.scram_mechanisms import HASHES, MECHANISMS, MIN_ITERATIONS
from protocol.topic_partition import CONSUMER_OFFSETS, TRANSACTION_STATE, TopicPartition, is_internal
from protocol.uuids import ZERO_UUID, Uuid
from protocol.wire.schema import Request, Response
from storage.log.log_reader import read_aborted
from storage.segment.transaction_index import AbortedTxn

R = TypeVar("R", bound=Response)
_TIMEOUT_MS: Final = 30_000
_READ_BYTES: Final = 1 << 20
_ALL_REPLICAS: Final = -1
_SET, _DELETE = 0, 1
"""Operations of IncrementalAlterConfigs."""


_PARTITION: Final = {"topic": text("The name of the topic."), "partition": integer("The partition.", minimum=0)}
_TOPIC: Final = struct(
    {
        "name": text("Its name."),
        "topic_id": text("Its id."),
        "internal": boolean("Whether it is one of Kafka's internal topics."),
        "partitions": array(
            struct(
                {
                    "partition": integer("The partition."),
                    "leader": integer("The id of the leader; -1 means none."),
                    "leader_epoch": integer("How often the leader has changed."),
                    "partition_epoch": integer("How often leader or ISR have changed."),
                    "replicas": array(integer("The id of a broker."), "The preferred leader is the first."),
                    "isr": array(integer("The id of a broker."), "The replicas that are in sync."),
                    "earliest?": integer("The first offset that can be read; only from the leader."),
                    "latest?": integer("The offset of the next record (the high watermark); only from the leader."),
                },
                "Partition",
            )
        ),
    },
    "Topic",
)
_HEADER: Final[Schema] = {
    "type": "array",
    "description": "Name and value.",
    "prefixItems": [text("The name."), nullable(text("In Base64.", contentEncoding="base64"))],
    "items": {},
    "minItems": 2,
    "maxItems": 2,
}
_CONTENT: Final = {
    "key": nullable(text("In Base64.", contentEncoding="base64", default=None)),
    "value": nullable(text("In Base64.", contentEncoding="base64", default=None)),
    "headers": array(_HEADER, "The headers.", default=[]),
    "timestamp": integer("Milliseconds since 1970; in a new record the time of the broker by default."),
}
_NEW_RECORD: Final = struct(optional(_CONTENT), "NewRecord")
_RECORD: Final = struct(
    {"partition": integer("Its partition."), "offset": integer("Its offset."), **_CONTENT}, "Record"
)
_MEMBER: Final = struct(
    {
        "member_id": text("The id that the broker gave it."),
        "instance_id": nullable(text("The id of a static member.")),
        "client_id": text("The client.id."),
        "host": text("Its address."),
        "partitions": nullable(array(struct(_PARTITION), "Its partitions; null if it is not a consumer.")),
    },
    "Member",
)
_GROUP: Final = struct(
    {
        "group_id": text("The group."),
        "state": text("Kafka's name of the state, such as `Stable`."),
        "protocol_type": text("`consumer` for consumers."),
        "members": array(_MEMBER),
        "offsets": array(struct({**_PARTITION, "offset": integer("The offset.")}), "The committed offsets."),
    },
    "Group",
)
_REQUEST: Final = struct(
    {
        "api": text("Kafka's name of the API, such as `Produce`."),
        "version": integer("The version of the API."),
        "client_id": nullable(text("The client.id.")),
        "principal": text("Who sent it, such as `User:alice`."),
        "address": text("The address of the client."),
        "listener": text("The listener."),
        "time_ms": integer("When it came, in milliseconds since 1970."),
        "request": mapping({}, "The fields of the request; long lists and bytes are cut."),
        "response": nullable(mapping({}, "The fields of the response; null if there is none yet.")),
        "duration_ms": nullable(number("How long the answer took.")),
        "fault": nullable(integer("The id of the fault that hit it.")),
        "errors": array(text("Kafka's name of the error."), "The errors in the response."),
    },
    "Request",
)
_CLOCK: Final = struct(
    {
        "now_ms": integer("The time, in milliseconds since 1970."),
        "ahead_ms": integer("How far it is ahead of the machine's."),
        "is_frozen": boolean("Whether time stands still."),
    },
    "Clock",
)


class LocalRequests:
    """Sends requests to the handlers that answer clients, in their newest version, without a connection."""

    def __init__(self, registry: HandlerRegistry, listener_name: str) -> None:
        self._registry = registry
        self._listener_name = listener_name

    async def send(self, request: Request, response_type: type[R]) -> R:
        """The response. Raises whatever the handler raises."""
        route = self._registry.routes[int(request.api_key)]
        context = RequestContext(
            route.max_version, CONTROL.name, "127.0.0.1", self._listener_name, CONTROL, correlation_id=0
        )
        response = await resolved(route.handle(context, request))
        assert isinstance(response, response_type)
        return response


class ControlServer:
    """Serves the control API of one broker."""

    def __init__(
        self,
        server: KafkaServer,
        token: str,
        machine: TimeMachine,
        files: FaultyFileSystem,
        *,
        links: Links | None = None,
        held: HeldNetwork | None = None,
    ) -> None:
        """A broker of a cluster has `links` to the others. `held` is the network whose listeners are not open yet."""
        self._server = server
        self._token = token
        self._machine = machine
        self._files = files
        self._held = held
        self._listening: asyncio.Server | None = None
        machine.is_busy = lambda: self._serving.logs.cleaner.is_cleaning
        self._serving = server.serving
        listener = next(iter(server.ports))
        self._requests = LocalRequests(self._serving.registry, listener)
        cluster = [] if links is None else [ClusterRequests(self._requests.send, links)]
        self._api = ControlApi(self, files.faults, *cluster)
        self._own: dict[tuple[str, ...], Callable[[HttpRequest], Awaitable[object]]] = {
            ("POST", "v1", "snapshots"): self._take_snapshot,
            ("POST", "v1", "replicas"): self._await_replicas,
            ("POST", "v1", "listeners"): self._open_listeners,
        }
        """Requests that only the package `odradek` sends, as parts of a snapshot or a reset."""
        self._interception = Interception(
            self._serving.registry,
            server.intercept(BrokenReplies),
            self._serving.sessions,
            self._topic_name,
            self._serving.clock,
        )

    async def start(self) -> int:
        """Listen on a free port of the loopback interface; returns the port."""
        loop = asyncio.get_running_loop()
        self._listening = await loop.create_server(lambda: HttpConnection(self._handle, self._token), "127.0.0.1", 0)
        port: int = self._listening.sockets[0].getsockname()[1]
        return port

    async def _handle(self, request: HttpRequest) -> object:
        try:
            own = self._own.get((request.method, *request.path))
            return await (self._api.handle(request) if own is None else own(request))
        except FaultError as error:
            raise HttpError(HTTPStatus.BAD_REQUEST, str(error)) from error
        except ApiError as error:
            raise HttpError(HTTPStatus.CONFLICT, error.message, error_name=error.error_code.name) from error

    # -- the broker and its topics -------------------------------------------------------------------------------------

    def _topic_name(self, topic_id: Uuid) -> str | None:
        return self._serving.coordination.metadata.image.topic_names.get(topic_id)

    @operation("GET", "openapi.json", "This API in OpenAPI 3.1.", answer=mapping({}, "The document."))
    async def _describe_api(self, _given: Given) -> object:
        return self._api.document()

    @operation(
        "GET",
        "broker",
        "The broker: its id, its ports, the controller.",
        answer=struct(
            {
                "broker_id": integer("Its id."),
                "cluster_id": text("The id of the cluster."),
                "controller_id": integer("The id of the controller; -1 means none."),
                "controller_epoch": integer("How often the controller has changed."),
                "brokers": mapping(integer("A port."), "The port of each running broker, by its id."),
                "ports": mapping(integer("A port."), "The ports of this broker, by the names of its listeners."),
            },
            "Broker",
        ),
    )
    async def _describe_broker(self, _given: Given) -> object:
        image = self._serving.coordination.metadata.image
        return {
            "broker_id": self._serving.member.broker_id,
            "cluster_id": image.cluster_id,
            "controller_id": image.controller_id,
            "controller_epoch": image.controller_epoch,
            "brokers": {
                broker_id: next(iter(broker.endpoints.values())).port for broker_id, broker in image.brokers.items()
            },
            "ports": self._server.ports,
        }

    @operation(
        "GET",
        "topics",
        "The topics.",
        parameters={
            "internal?": text(
                "Whether Kafka's internal topics are among them.", enum=["true", "false"], default="false"
            )
        },
        answer=struct({"topics": array(_TOPIC)}),
    )
    async def _list_topics(self, given: Given) -> object:
        has_internal = given["internal"] == "true"
        image = self._serving.coordination.metadata.image
        hosted = self._serving.logs.replicas.hosted.partitions
        topics = []
        async for name, topic in in_slices(sorted(image.topics.items()), self._serving.clock):
            if is_internal(name) and not has_internal:
                continue
            partitions = []
            for state in topic.partitions:
                here = hosted.get(TopicPartition(name, state.partition))
                offsets = {}
                if here is not None and here.is_leader and here.has_known_high_watermark:
                    offsets = {"earliest": here.log.log_start_offset, "latest": here.high_watermark}
                partitions.append(
                    {
                        "partition": state.partition,
                        "leader": state.leader,
                        "leader_epoch": state.leader_epoch,
                        "partition_epoch": state.partition_epoch,
                        "replicas": list(state.replicas),
                        "isr": list(state.isr),
                        **offsets,
                    }
                )
            topics.append(
                {
                    "name": name,
                    "topic_id": str(topic.topic_id),
                    "internal": is_internal(name),
                    "partitions": partitions,
                }
            )
        return {"topics": topics}

    @operation(
        "POST",
        "topics",
        "Create a topic. In a cluster, only the controller does it.",
        body={
            "name": text("Its name."),
            "partitions?": integer("How many; -1 means `num.partitions` of the broker.", default=-1),
            "replication_factor?": integer("-1 means `default.replication.factor` of the broker.", default=-1),
            "config?": {
                **mapping({"type": ["string", "number", "boolean"]}, "Its keys, such as `retention.ms`."),
                "default": {},
            },
        },
        answer=struct(
            {"name": text("Its name."), "topic_id": text("Its id."), "partitions": integer("How many there are.")}
        ),
        example={"name": "orders", "partitions": 3, "config": {"retention.ms": 3_600_000}},
    )
    async def _create_topic(self, given: Given) -> object:
        topic = CreateTopicsRequest.CreatableTopic(
            name=given["name"],
            num_partitions=given["partitions"],
            replication_factor=given["replication_factor"],
            assignments=[],
            configs=[
                CreateTopicsRequest.CreatableTopicConfig(name=name, value=_config_text(value))
                for name, value in given["config"].items()
            ],
        )
        asked = CreateTopicsRequest(topics=[topic], timeout_ms=_TIMEOUT_MS)
        (result,) = (await self._requests.send(asked, CreateTopicsResponse)).topics
        raise_error(result)
        return {"name": result.name, "topic_id": str(result.topic_id), "partitions": result.num_partitions}

    @operation(
        "DELETE",
        "topics/{name}",
        "Delete a topic. In a cluster, only the controller does it.",
        parameters={"name": text("Its name.")},
        example={"name": "orders"},
    )
    async def _delete_topic(self, given: Given) -> object:
        state = DeleteTopicsRequest.DeleteTopicState(name=given["name"], topic_id=ZERO_UUID)
        asked = DeleteTopicsRequest(topics=[state], timeout_ms=_TIMEOUT_MS)
        (result,) = (await self._requests.send(asked, DeleteTopicsResponse)).responses
        raise_error(result)
        return {}

    # -- records -------------------------------------------------------------------------------------------------------

    @operation(
        "GET",
        "records",
        "Read records without a consumer, from the partitions that this broker leads.",
        parameters={
            "topic": text("The name of the topic."),
            "partition?": integer("Only this partition.", minimum=0),
            "from?": integer("The first offset.", minimum=0, default=0),
            "isolation?": text(
                "Without or with the records of transactions that are aborted or not complete.",
                enum=["read_committed", "read_uncommitted"],
                default="read_committed",
            ),
        },
        answer=struct({"records": array(_RECORD, "By partition and offset.")}),
        example={"topic": "orders", "partition": 0},
    )
    async def _read_records(self, given: Given) -> object:
        is_committed = given["isolation"] == "read_committed"
        level = IsolationLevel.READ_COMMITTED if is_committed else IsolationLevel.READ_UNCOMMITTED
        partitions = self._led_partitions(given["topic"], given.get("partition"))
        found = _records_of(partitions, given["from"], level)
        return {"records": [record async for record in in_slices(found, self._serving.clock)]}

    def _led_partitions(self, topic: str, partition: int | None) -> list[Partition]:
        """The partitions of a topic that this broker leads. Raises UNKNOWN_TOPIC_OR_PARTITION."""
        known = self._serving.coordination.metadata.image.topics.get(topic)
        if known is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"no topic {topic!r}")
        hosted = self._serving.logs.replicas.hosted.partitions
        wanted = range(len(known.partitions)) if partition is None else [partition]
        found = [hosted.get(TopicPartition(topic, index)) for index in wanted]
        return [each for each in found if each is not None and each.is_leader]

    @operation(
        "POST",
        "records",
        "Append records in one batch to a partition that this broker leads.",
        body={
            "topic": text("The name of the topic."),
            "partition?": integer("The partition.", minimum=0, default=0),
            "records": array(_NEW_RECORD, "The records.", minItems=1),
        },
        answer=struct({"partition": integer("The partition."), "offset": integer("The offset of the first record.")}),
        example={"topic": "orders", "records": [{"key": "QTE=", "value": "bmV3", "headers": [["trace", "MQ=="]]}]},
    )
    async def _append_records(self, given: Given) -> object:
        partition, now_ms = given["partition"], self._serving.clock.now_ms()
        records = [_record(each, now_ms) for each in given["records"]]
        data = ProduceRequest.PartitionProduceData(index=partition, records=memoryview(bytearray(build_batch(records))))
        topic = ProduceRequest.TopicProduceData(name=given["topic"], partition_data=[data])
        asked = ProduceRequest(acks=_ALL_REPLICAS, timeout_ms=_TIMEOUT_MS, topic_data=[topic])
        response = await self._requests.send(asked, ProduceResponse)
        (result,) = response.responses[0].partition_responses
        raise_error(result)
        return {"partition": partition, "offset": result.base_offset}

    # -- groups --------------------------------------------------------------------------------------------------------

    @operation(
        "GET",
        "groups",
        "The groups that this broker coordinates, with members and committed offsets.",
        answer=struct({"groups": array(_GROUP)}),
    )
    async def _describe_groups(self, _given: Given) -> object:
        listed = await self._requests.send(ListGroupsRequest(), ListGroupsResponse)
        names = sorted(each.group_id for each in listed.groups)
        asked = DescribeGroupsRequest(groups=names)
        described = (await self._requests.send(asked, DescribeGroupsResponse)).groups
        groups = [OffsetFetchRequest.OffsetFetchRequestGroup(group_id=name, topics=None) for name in names]
        offsets = (await self._requests.send(OffsetFetchRequest(groups=groups), OffsetFetchResponse)).groups
        committed = {each.group_id: each.topics for each in offsets}
        return {
            "groups": [
                {
                    "group_id": group.group_id,
                    "state": group.group_state,
                    "protocol_type": group.protocol_type,
                    "members": [
                        {
                            "member_id": member.member_id,
                            "instance_id": member.group_instance_id,
                            "client_id": member.client_id,
                            "host": member.client_host,
                            "partitions": _assigned(group.protocol_type, member.member_assignment),
                        }
                        for member in group.members
                    ],
                    "offsets": [
                        {"topic": topic.name, "partition": each.partition_index, "offset": each.committed_offset}
                        for topic in committed.get(group.group_id, [])
                        for each in topic.partitions
                    ],
                }
                for group in described
            ]
        }

    @operation(
        "GET",
        "coordinator",
        "The internal topic and the partition that a group or a transactional id is in. Name one of them.",
        parameters={"group?": text("The group."), "transactional_id?": text("The transactional id.")},
        answer=struct(_PARTITION),
        example={"group": "billing"},
    )
    async def _find_coordinator(self, given: Given) -> object:
        if len(given) != 1:
            raise HttpError(HTTPStatus.BAD_REQUEST, "name either group or transactional_id")
        ((kind, key),) = given.items()
        topic = CONSUMER_OFFSETS if kind == "group" else TRANSACTION_STATE
        known = self._serving.coordination.metadata.image.topics.get(topic)
        if known is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{topic} does not exist yet: nothing has used it")
        return {"topic": topic, "partition": coordinator_partition(key, len(known.partitions))}

    # -- configurations ------------------------------------------------------------------------------------------------

    @operation(
        "POST",
        "configs",
        "Change the configuration of a topic, or of this broker.",
        body={
            "topic?": nullable(text("The topic; null means this broker.", default=None)),
            "config": mapping(
                {"type": ["string", "number", "boolean", "null"]},
                "Its keys; null restores the default of one.",
            ),
        },
        example={"topic": "orders", "config": {"retention.ms": 60_000, "max.message.bytes": None}},
    )
    async def _alter_config(self, given: Given) -> object:
        topic = given["topic"]
        resource = IncrementalAlterConfigsRequest.AlterConfigsResource(
            resource_type=ConfigResourceType.BROKER if topic is None else ConfigResourceType.TOPIC,
            resource_name=str(self._serving.member.broker_id) if topic is None else topic,
            configs=[
                IncrementalAlterConfigsRequest.AlterableConfig(
                    name=name, config_operation=_DELETE if value is None else _SET, value=_config_text(value)
                )
                for name, value in given["config"].items()
            ],
        )
        asked = IncrementalAlterConfigsRequest(resources=[resource], validate_only=False)
        (result,) = (await self._requests.send(asked, IncrementalAlterConfigsResponse)).responses
        raise_error(result)
        return {}

    # -- logs ----------------------------------------------------------------------------------------------------------

    @operation(
        "POST",
        "logs",
        "Compact topics now, active segments too, or delete what retention releases.",
        body={
            "do": text("What to do.", enum=["compact", "retention"]),
            "topic?": nullable(text("Compact only this topic.", default=None)),
        },
        example={"do": "compact"},
    )
    async def _clean_logs(self, given: Given) -> object:
        topic, now_ms = given["topic"], self._serving.clock.now_ms()
        hosted = self._serving.logs.replicas.hosted.partitions
        logs = [each.log for key, each in sorted(hosted.items()) if topic is None or key.topic == topic]
        if topic is not None and not logs:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"no topic {topic!r}")
        if given["do"] == "compact":
            compacted = [log for log in logs if log.config.is_compacted]
            for log in compacted:
                log.roll(now_ms)
                log.flush(now_ms)
            await self._serving.logs.cleaner.compact(compacted)
        else:
            await self._serving.logs.maintenance.delete_old_segments()
        return {}

    # -- users ---------------------------------------------------------------------------------------------------------

    @operation(
        "POST",
        "users",
        "Create a user who logs in by a SCRAM mechanism, or change the password.",
        body={
            "name": text("The user."),
            "password": text("The password."),
            "mechanism": text("The mechanism.", enum=list(HASHES)),
        },
        example={"name": "alice", "password": "secret", "mechanism": "SCRAM-SHA-512"},
    )
    async def _create_user(self, given: Given) -> object:
        name, mechanism, password = given["name"], given["mechanism"], given["password"].encode()
        salt = f"odradek-{name}".encode()  # a secret of a test needs no other
        upsertion = AlterUserScramCredentialsRequest.ScramCredentialUpsertion(
            name=name,
            mechanism=next(number for number, each in MECHANISMS.items() if each == mechanism),
            iterations=MIN_ITERATIONS,
            salt=salt,
            salted_password=hashlib.pbkdf2_hmac(HASHES[mechanism], password, salt, MIN_ITERATIONS),
        )
        asked = AlterUserScramCredentialsRequest(deletions=[], upsertions=[upsertion])
        (result,) = (await self._requests.send(asked, AlterUserScramCredentialsResponse)).results
        raise_error(result)
        return {}

    # -- requests and faults -------------------------------------------------------------------------------------------

    @operation(
        "GET",
        "requests",
        f"The last {TAPE_REQUESTS:,} requests of clients with their answers, oldest first.",
        parameters={"api?": text("Only this API, such as `Produce`."), "client_id?": text("Only this client.")},
        answer=struct({"requests": array(_REQUEST)}),
        example={"api": "Produce"},
    )
    async def _list_requests(self, given: Given) -> object:
        found = self._interception.tape(given.get("api"), given.get("client_id"))
        return {"requests": [{**each, "errors": errors_in(each["response"])} for each in found]}

    @operation("GET", "faults", "The faults that are set, with their hits.", answer=struct({"faults": array(FAULT)}))
    async def _list_faults(self, _given: Given) -> object:
        return {"faults": [rule.described() for rule in self._interception.rules()]}

    @operation(
        "POST",
        "faults",
        "Set a fault that hits the next requests of an API.",
        body=NEW_FAULT,
        answer=FAULT,
        example={"api": "Produce", "error": "NOT_LEADER_OR_FOLLOWER", "topic": "orders", "times": 2},
    )
    async def _set_fault(self, given: Given) -> object:
        return self._interception.add(given).described()

    @operation(
        "DELETE",
        "faults/{id}",
        "Remove a fault.",
        parameters={"id": integer("The id of the fault.")},
        example={"id": 1},
    )
    async def _remove_fault(self, given: Given) -> object:
        self._interception.remove(given["id"])
        return {}

    @operation("DELETE", "faults", "Remove all faults.")
    async def _remove_faults(self, _given: Given) -> object:
        self._interception.remove(None)
        return {}

    # -- time ----------------------------------------------------------------------------------------------------------

    @operation("GET", "clock", "The broker's time.", answer=_CLOCK)
    async def _show_clock(self, _given: Given) -> object:
        movable = self._machine.movable
        now_ms, ahead_ms = self._serving.clock.now_ms(), round(movable.ahead_s * 1000)
        return {"now_ms": now_ms, "ahead_ms": ahead_ms, "is_frozen": movable.is_frozen}

    @operation(
        "POST",
        "clock",
        "Freeze, set and advance the broker's time, in this order; answered when all that fell due has run.",
        body={
            "freeze?": boolean("Let time stand still, or go on."),
            "set_ms?": integer("Set the wall clock, in milliseconds since 1970; no timer notices."),
            "ahead_ms?": integer("Set the wall clock so far ahead of the machine's."),
            "advance_ms?": integer("Move time forth.", minimum=0),
            "silent_clients?": boolean("Clients time out, as if they sent nothing meanwhile.", default=False),
        },
        answer=_CLOCK,
        example={"advance_ms": 60_000},
    )
    async def _move_clock(self, given: Given) -> object:
        movable = self._machine.movable
        if "freeze" in given:
            (movable.freeze if given["freeze"] else movable.unfreeze)()
        if "set_ms" in given:
            movable.set_wall(given["set_ms"] / 1000)
        if "ahead_ms" in given:
            movable.set_ahead(given["ahead_ms"] / 1000)
        if "advance_ms" in given:
            keep = [] if given["silent_clients"] else [self._keep_clients]
            await self._machine.advance(given["advance_ms"] / 1000, *keep)
        return await self._show_clock({})

    def _keep_clients(self, seconds: float) -> None:
        """Treat the clients as if they had sent something until time has moved so far."""
        self._serving.member.coordinators.groups.postpone_sessions(math.ceil(seconds * 1000))
        for connection in self._server.connections():
            connection.last_active_s += seconds

    # -- snapshots and the address -------------------------------------------------------------------------------------

    async def _take_snapshot(self, request: HttpRequest) -> object:
        body, meet = request.body, []
        if "meeting" in body:  # with the other processes of a cluster
            meet.append(meeting(body["meeting"], body["processes"]))
        await take_snapshot(self._serving, self._files, body["directory"], *meet)
        return await self._show_clock({})

    async def _await_replicas(self, _request: HttpRequest) -> object:
        await await_replicas(self._serving)
        return {}

    async def _open_listeners(self, _request: HttpRequest) -> object:
        if self._held is not None:
            try:
                await self._held.open()
            except OSError as error:
                message = f"the new broker cannot have the address of the old one: {error}"
                raise HttpError(HTTPStatus.SERVICE_UNAVAILABLE, message) from error
        return {}


def _assigned(protocol_type: str, assignment: bytes) -> list[dict[str, object]] | None:
    """The partitions of a consumer; returns None for other members, such as Connect workers."""
    if protocol_type != "consumer":
        return None
    if not assignment:
        return []
    version = int.from_bytes(assignment[:2], "big", signed=True)
    try:
        decoded = ConsumerProtocolAssignment.decode_prefix(memoryview(assignment)[2:], min(version, 3))[0]
    except ApiError:
        return None
    found = [(each.topic, partition) for each in decoded.assigned_partitions for partition in each.partitions]
    return [{"topic": topic, "partition": partition} for topic, partition in sorted(found)]


def _config_text(value: Any) -> str | None:
    """A value of JSON as server.properties has it."""
    if value is None or isinstance(value, str):
        return value
    return str(value).lower() if isinstance(value, bool) else str(value)


def _bytes(text: str | None) -> bytes | None:
    try:
        return None if text is None else base64.b64decode(text, validate=True)
    except ValueError as error:
        raise HttpError(HTTPStatus.BAD_REQUEST, f"not Base64: {text!r}") from error


def _base64(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def _record(given: dict[str, Any], now_ms: int) -> Record:
    headers = [(name, _bytes(value)) for name, value in given["headers"]]
    return Record(0, given.get("timestamp", now_ms), _bytes(given["key"]), _bytes(given["value"]), headers)


def _records_of(partitions: list[Partition], first: int, isolation: IsolationLevel) -> Iterator[dict[str, object]]:
    for partition in partitions:
        aborted = read_aborted(partition.log) if isolation is IsolationLevel.READ_COMMITTED else []
        for batch in _batches(partition, first, isolation):
            if batch.is_control or _is_aborted(batch, aborted):
                continue
            for record in batch.records():
                if record.offset >= first:
                    yield {
                        "partition": partition.topic_partition.partition,
                        "offset": record.offset,
                        "timestamp": record.timestamp,
                        "key": _base64(record.key),
                        "value": _base64(record.value),
                        "headers": [[name, _base64(value)] for name, value in record.headers],
                    }


def _is_aborted(batch: RecordBatch, aborted: list[AbortedTxn]) -> bool:
    return batch.is_transactional and any(
        each.producer_id == batch.producer_id and each.first_offset <= batch.base_offset <= each.last_offset
        for each in aborted
    )


def _batches(partition: Partition, first: int, isolation: IsolationLevel) -> Iterator[RecordBatch]:
    """The batches from the one with the offset `first` to the end that a consumer sees."""
    offset, end = max(first, partition.log.log_start_offset), partition.readable_end(isolation)
    while offset < end:
        found = partition.log.read(offset, _READ_BYTES, end)
        if found.file is None:
            return
        for batch in read_batches(memoryview(found.file.pread(found.position, found.size))):
            yield batch
            offset = batch.next_offset
