"""The control API of a broker under test, as JSON over HTTP on loopback, behind a token.

| request | answer |
|---|---|
| `GET /v1/broker` | broker id, cluster id, controller, listeners |
| `GET /v1/topics` | the topics without the internal ones, with leaders, replicas, ISR and offsets of their partitions |
| `POST /v1/topics` | creates a topic: `name`, `partitions`, `replication_factor`, `config` |
| `DELETE /v1/topics/NAME` | deletes it; its logs are gone when the answer comes |
| `GET /v1/records?topic=` | the records of the partitions that this broker leads; `partition`, `from`, `isolation` |
| `POST /v1/records` | appends `records` to `topic`, `partition` |
| `GET /v1/groups` | the groups that this broker coordinates: state, members with their partitions, committed offsets |
| `POST /v1/logs` | compacts logs or applies retention now: `do` is `compact` or `retention`; `topic` |
| `POST /v1/users` | creates a SCRAM user: `name`, `password`, `mechanism` |
| `GET /v1/requests` | the last requests with their answers; `api`, `client_id` |
| `GET /v1/faults`, `POST /v1/faults` | the faults that are set; sets one, see `fault_rules` |
| `GET /v1/clock`, `POST /v1/clock` | the broker's time; `advance_ms`, `set_ms`, `freeze`, `silent_clients` |
| `DELETE /v1/faults/ID`, `DELETE /v1/faults` | removes a fault, or all |

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

from broker.network.registry import HandlerRegistry, RequestContext
from broker.server import KafkaServer
from broker.test_mode.cluster_requests import ClusterRequests, raise_error
from broker.test_mode.cut_network import Links
from broker.test_mode.fault_rules import FaultError
from broker.test_mode.http_connection import HttpConnection, HttpError, HttpRequest
from broker.test_mode.interception import CONTROL, Interception, errors_in, resolved
from broker.test_mode.virtual_time import TimeMachine
from cluster.replication.partition import Partition
from cluster.replication.reads import IsolationLevel
from environment.slices import in_slices
from protocol.errors import ApiError, ErrorCode
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
from protocol.topic_partition import TopicPartition, is_internal
from protocol.uuids import ZERO_UUID, Uuid
from protocol.wire.schema import Request, Response
from storage.log.log_reader import read_aborted
from storage.segment.transaction_index import AbortedTxn

R = TypeVar("R", bound=Response)
_TIMEOUT_MS: Final = 30_000
_READ_BYTES: Final = 1 << 20
_ALL_REPLICAS: Final = -1


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

    def __init__(self, server: KafkaServer, token: str, machine: TimeMachine, links: Links | None = None) -> None:
        """A broker of a cluster has `links` to the others."""
        self._server = server
        self._token = token
        self._machine = machine
        self._listening: asyncio.Server | None = None
        machine.is_busy = lambda: self._serving.logs.cleaner.is_cleaning
        self._serving = server.serving
        listener = next(iter(server.ports))
        self._requests = LocalRequests(self._serving.registry, listener)
        self._handlers: dict[tuple[str, str], Callable[[HttpRequest], Awaitable[object]]] = {
            ("GET", "broker"): self._describe_broker,
            ("GET", "topics"): self._list_topics,
            ("POST", "topics"): self._create_topic,
            ("DELETE", "topics"): self._delete_topic,
            ("GET", "records"): self._read_records,
            ("POST", "records"): self._append_records,
            ("GET", "groups"): self._describe_groups,
            ("POST", "users"): self._create_user,
            ("POST", "logs"): self._clean_logs,
            ("GET", "requests"): self._list_requests,
            ("GET", "faults"): self._list_faults,
            ("POST", "faults"): self._set_fault,
            ("DELETE", "faults"): self._remove_faults,
            ("GET", "clock"): self._show_clock,
            ("POST", "clock"): self._move_clock,
        }
        if links is not None:
            self._handlers.update(ClusterRequests(self._requests.send, links).handlers)
        self._interception = Interception(
            self._serving.registry,
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
        version, *path = request.path
        handler = self._handlers.get((request.method, path[0] if path else ""))
        if version != "v1" or handler is None:
            raise HttpError(HTTPStatus.NOT_FOUND, f"no {request.method} /{'/'.join(request.path)}")
        try:
            return await handler(request)
        except FaultError as error:
            raise HttpError(HTTPStatus.BAD_REQUEST, str(error)) from error
        except ApiError as error:
            raise HttpError(HTTPStatus.CONFLICT, error.message, error_name=error.error_code.name) from error

    # -- the broker and its topics -------------------------------------------------------------------------------------

    def _topic_name(self, topic_id: Uuid) -> str | None:
        return self._serving.coordination.metadata.image.topic_names.get(topic_id)

    async def _describe_broker(self, _request: HttpRequest) -> object:
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

    async def _list_topics(self, _request: HttpRequest) -> object:
        image = self._serving.coordination.metadata.image
        hosted = self._serving.logs.replicas.hosted.partitions
        topics = []
        async for name, topic in in_slices(sorted(image.topics.items()), self._serving.clock):
            if is_internal(name):
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
            topics.append({"name": name, "topic_id": str(topic.topic_id), "partitions": partitions})
        return {"topics": topics}

    async def _create_topic(self, request: HttpRequest) -> object:
        body = request.body
        topic = CreateTopicsRequest.CreatableTopic(
            name=_text(body, "name"),
            num_partitions=_integer(body, "partitions", -1),
            replication_factor=_integer(body, "replication_factor", -1),
            assignments=[],
            configs=[
                CreateTopicsRequest.CreatableTopicConfig(name=name, value=str(value))
                for name, value in body.get("config", {}).items()
            ],
        )
        asked = CreateTopicsRequest(topics=[topic], timeout_ms=_TIMEOUT_MS)
        (result,) = (await self._requests.send(asked, CreateTopicsResponse)).topics
        raise_error(result)
        return {"name": result.name, "topic_id": str(result.topic_id), "partitions": result.num_partitions}

    async def _delete_topic(self, request: HttpRequest) -> object:
        if len(request.path) != 3:
            raise HttpError(HTTPStatus.NOT_FOUND, "name the topic: DELETE /v1/topics/NAME")
        state = DeleteTopicsRequest.DeleteTopicState(name=request.path[2], topic_id=ZERO_UUID)
        asked = DeleteTopicsRequest(topics=[state], timeout_ms=_TIMEOUT_MS)
        (result,) = (await self._requests.send(asked, DeleteTopicsResponse)).responses
        raise_error(result)
        return {}

    # -- records -------------------------------------------------------------------------------------------------------

    async def _read_records(self, request: HttpRequest) -> object:
        topic = request.query.get("topic", "")
        isolation = request.query.get("isolation", "read_committed")
        if isolation not in ("read_committed", "read_uncommitted"):
            raise HttpError(HTTPStatus.BAD_REQUEST, f"isolation is not read_committed or read_uncommitted: {isolation}")
        level = IsolationLevel.READ_COMMITTED if isolation == "read_committed" else IsolationLevel.READ_UNCOMMITTED
        partitions = self._led_partitions(topic, _number(request, "partition", None))
        first = _number(request, "from", 0) or 0
        found = _records_of(partitions, first, level)
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

    async def _append_records(self, request: HttpRequest) -> object:
        body, now_ms = request.body, self._serving.clock.now_ms()
        records = [_record(each, now_ms) for each in body.get("records", [])]
        if not records:
            raise HttpError(HTTPStatus.BAD_REQUEST, "records is empty")
        partition = _integer(body, "partition", 0)
        data = ProduceRequest.PartitionProduceData(index=partition, records=memoryview(bytearray(build_batch(records))))
        topic = ProduceRequest.TopicProduceData(name=_text(body, "topic"), partition_data=[data])
        asked = ProduceRequest(acks=_ALL_REPLICAS, timeout_ms=_TIMEOUT_MS, topic_data=[topic])
        response = await self._requests.send(asked, ProduceResponse)
        (result,) = response.responses[0].partition_responses
        raise_error(result)
        return {"partition": partition, "offset": result.base_offset}

    # -- groups --------------------------------------------------------------------------------------------------------

    async def _describe_groups(self, _request: HttpRequest) -> object:
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

    # -- logs ----------------------------------------------------------------------------------------------------------

    async def _clean_logs(self, request: HttpRequest) -> object:
        """Compact a topic or all, including what is in active segments; or apply retention."""
        what, topic, now_ms = _text(request.body, "do"), request.body.get("topic"), self._serving.clock.now_ms()
        hosted = self._serving.logs.replicas.hosted.partitions
        logs = [each.log for key, each in sorted(hosted.items()) if topic is None or key.topic == topic]
        if topic is not None and not logs:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"no topic {topic!r}")
        if what == "compact":
            compacted = [log for log in logs if log.config.is_compacted]
            for log in compacted:
                log.roll(now_ms)
                log.flush(now_ms)
            await self._serving.logs.cleaner.compact(compacted)
        elif what == "retention":
            await self._serving.logs.maintenance.delete_old_segments()
        else:
            raise HttpError(HTTPStatus.BAD_REQUEST, f"do is neither compact nor retention: {what}")
        return {}

    # -- users ---------------------------------------------------------------------------------------------------------

    async def _create_user(self, request: HttpRequest) -> object:
        """Create a user of a SCRAM mechanism, or change the password."""
        name, mechanism = _text(request.body, "name"), _text(request.body, "mechanism")
        if mechanism not in HASHES:
            raise HttpError(HTTPStatus.BAD_REQUEST, f"unknown mechanism {mechanism}; there are: {', '.join(HASHES)}")
        salt = f"odradek-{name}".encode()  # a secret of a test needs no other
        password = _text(request.body, "password").encode()
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

    async def _list_requests(self, request: HttpRequest) -> object:
        found = self._interception.tape(request.query.get("api"), request.query.get("client_id"))
        return {"requests": [{**each, "errors": errors_in(each["response"])} for each in found]}

    async def _list_faults(self, _request: HttpRequest) -> object:
        return {"faults": [rule.described() for rule in self._interception.rules()]}

    async def _set_fault(self, request: HttpRequest) -> object:
        return self._interception.add(request.body).described()

    async def _remove_faults(self, request: HttpRequest) -> object:
        if len(request.path) > 3 or (len(request.path) == 3 and not request.path[2].isdigit()):
            raise HttpError(HTTPStatus.NOT_FOUND, "DELETE /v1/faults/ID or DELETE /v1/faults")
        self._interception.remove(int(request.path[2]) if len(request.path) == 3 else None)
        return {}

    # -- time ----------------------------------------------------------------------------------------------------------

    async def _show_clock(self, _request: HttpRequest) -> object:
        movable = self._machine.movable
        return {"now_ms": self._serving.clock.now_ms(), "is_frozen": movable.is_frozen}

    async def _move_clock(self, request: HttpRequest) -> object:
        """`freeze`, `set_ms` and `advance_ms`, in this order."""
        body, movable = request.body, self._machine.movable
        if "freeze" in body:
            (movable.freeze if body["freeze"] else movable.unfreeze)()
        if "set_ms" in body:
            movable.set_wall(_integer(body, "set_ms", 0) / 1000)
        if "advance_ms" in body:
            advance_ms = _integer(body, "advance_ms", 0)
            if advance_ms < 0:
                raise HttpError(HTTPStatus.BAD_REQUEST, f"time does not go back: advance_ms is {advance_ms}")
            if body.get("silent_clients", False):
                await self._machine.advance(advance_ms / 1000)
            else:
                await self._machine.advance(advance_ms / 1000, self._keep_clients)
        return await self._show_clock(request)

    def _keep_clients(self, seconds: float) -> None:
        """Treat the clients as if they had sent something until time has moved so far."""
        self._serving.member.coordinators.groups.postpone_sessions(math.ceil(seconds * 1000))
        for connection in self._server.connections():
            connection.last_active_s += seconds


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


def _text(body: dict[str, Any], name: str) -> str:
    value = body.get(name)
    if not isinstance(value, str):
        raise HttpError(HTTPStatus.BAD_REQUEST, f"{name} is not a string")
    return value


def _integer(body: dict[str, Any], name: str, default: int) -> int:
    value = body.get(name, default)
    if not isinstance(value, int):
        raise HttpError(HTTPStatus.BAD_REQUEST, f"{name} is not an integer")
    return value


def _number(request: HttpRequest, name: str, default: int | None) -> int | None:
    """A parameter of the query."""
    text = request.query.get(name)
    if text is None:
        return default
    if not text.isascii() or not text.isdigit():
        raise HttpError(HTTPStatus.BAD_REQUEST, f"{name} is not an integer: {text}")
    return int(text)


def _bytes(text: str | None) -> bytes | None:
    try:
        return None if text is None else base64.b64decode(text, validate=True)
    except ValueError as error:
        raise HttpError(HTTPStatus.BAD_REQUEST, f"not Base64: {text!r}") from error


def _base64(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def _record(given: dict[str, Any], now_ms: int) -> Record:
    headers = [(name, _bytes(value)) for name, value in given.get("headers", [])]
    return Record(
        0, _integer(given, "timestamp", now_ms), _bytes(given.get("key")), _bytes(given.get("value")), headers
    )


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
