"""The OpenAPI document of the control API: what it says is what a real broker takes and answers."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from http.client import HTTPConnection
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from confluent_kafka import Consumer, Producer
from jsonschema import Draft202012Validator

import odradek
from broker.test_mode.api_description import Operation, operations_of
from broker.test_mode.cluster_requests import ClusterRequests
from broker.test_mode.control_server import ControlServer
from broker.test_mode.faulty_disk import DiskFaults
from tests.kit.waiting import eventually

OF_ONE = [mark for owner in (ControlServer, DiskFaults) for _, mark in operations_of(owner)]
OF_CLUSTERS = [mark for _, mark in operations_of(ClusterRequests)]
KEYWORDS = {
    *(
        "type",
        "description",
        "title",
        "default",
        "enum",
        "minimum",
        "maximum",
        "contentEncoding",
        "properties",
        "required",
    ),
    *("items", "prefixItems", "minItems", "maxItems", "additionalProperties"),
}
"""The keywords that the broker checks or that only document."""
PART = {"type": "object", "required": ["description"]}
DOCUMENT = {
    "type": "object",
    "required": ["openapi", "info", "paths", "components", "security", "servers"],
    "properties": {
        "openapi": {"const": "3.1.0"},
        "info": {"type": "object", "required": ["title", "version"]},
        "paths": {
            "type": "object",
            "propertyNames": {"pattern": "^/v1/"},
            "additionalProperties": {
                "type": "object",
                "propertyNames": {"enum": ["get", "post", "delete"]},
                "additionalProperties": {
                    "type": "object",
                    "required": ["operationId", "summary", "responses"],
                    "additionalProperties": False,
                    "properties": {
                        "operationId": {"type": "string", "pattern": "^[a-z_]+$"},
                        "summary": {"type": "string", "pattern": "\\.$"},
                        "parameters": {
                            "type": "array",
                            "items": {
                                "type": "object",
                                "required": ["name", "in", "required", "description", "schema"],
                                "properties": {"in": {"enum": ["path", "query"]}},
                                "if": {"properties": {"in": {"const": "path"}}},
                                "then": {"properties": {"required": {"const": True}}},
                            },
                        },
                        "requestBody": {"type": "object", "required": ["content", "required"]},
                        "responses": {"type": "object", "required": ["200", "400", "401", "409"]},
                    },
                },
            },
        },
        "components": {
            "type": "object",
            "required": ["schemas", "responses", "securitySchemes"],
            "properties": {"responses": {"additionalProperties": PART}},
        },
    },
}


@pytest.fixture(scope="module")
def broker() -> Iterator[odradek.Broker]:
    with odradek.Broker() as running:
        yield running


@pytest.fixture(scope="module")
def controller() -> Iterator[odradek.Broker]:
    with odradek.Cluster(brokers=2) as cluster:
        cluster.create_topic("orders")
        cluster.await_isr("orders", {1, 2})
        yield cluster.broker(cluster.await_controller())


def answer(broker: odradek.Broker, mark: Operation) -> tuple[int, Any]:
    """The status and the answer of the request that an operation has as its example."""
    path = "/".join(
        quote(str(mark.example[part[1:-1]])) if part.startswith("{") else part for part in mark.path.split("/")
    )
    parameters = mark.parameter_schema["properties"]
    query = {name: value for name, value in mark.example.items() if name in parameters and not mark.is_in_path(name)}
    body = {name: value for name, value in mark.example.items() if name not in parameters}
    connection = HTTPConnection(broker.control_url.removeprefix("http://"), timeout=60)
    connection.request(
        mark.method,
        f"/v1/{path}?{urlencode(query)}",
        None if mark.body is None else json.dumps(body),
        {"Authorization": f"Bearer {broker.control_token}"},
    )
    response = connection.getresponse()
    found = json.loads(response.read())
    connection.close()
    return response.status, found


def document_of(broker: odradek.Broker) -> dict[str, Any]:
    return answer(broker, next(mark for mark in OF_ONE if mark.path == "openapi.json"))[1]


def resolved(schema: Any, document: dict[str, Any]) -> Any:
    """The schema with its references resolved, and its objects closed: each field that is answered is declared."""
    if isinstance(schema, list):
        return [resolved(each, document) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        name = schema["$ref"].removeprefix("#/components/schemas/")
        return resolved(document["components"]["schemas"][name], document)
    whole = {key: resolved(value, document) for key, value in schema.items()}
    return {**whole, "additionalProperties": False} if isinstance(schema.get("properties"), dict) else whole


def check_answer(broker: odradek.Broker, mark: Operation, document: dict[str, Any]) -> Any:
    """The answer of an operation's example, which is as the document says."""
    described = document["paths"][f"/v1/{mark.path}"][mark.method.lower()]
    status, found = answer(broker, mark)
    assert status == 200, (mark.line, found)
    schema = resolved(described["responses"]["200"]["content"]["application/json"]["schema"], document)
    assert [error.message for error in Draft202012Validator(schema).iter_errors(found)] == [], mark.line
    if mark.body is not None:
        content = described["requestBody"]["content"]["application/json"]
        assert Draft202012Validator(resolved(content["schema"], document)).is_valid(content["example"]), mark.line
    return found


def schemas_in(part: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
    """Every schema in a part of the document, itself included."""
    if part:
        yield part
        children = [*part.get("properties", {}).values(), *part.get("prefixItems", [])]
        for each in (*children, part.get("items", {}), part.get("additionalProperties", {})):
            yield from schemas_in(each)


def test_the_document_is_openapi(broker: odradek.Broker, controller: odradek.Broker) -> None:
    for running in (broker, controller):
        document = document_of(running)
        assert [error.message for error in Draft202012Validator(DOCUMENT).iter_errors(document)] == []
        names = [each["operationId"] for methods in document["paths"].values() for each in methods.values()]
        assert len(names) == len(set(names))
        for schema in document["components"]["schemas"].values():
            Draft202012Validator.check_schema(schema)
        text = json.dumps(document)
        assert {
            name for name in document["components"]["schemas"] if f'"#/components/schemas/{name}"' not in text
        } == set()


def test_the_document_has_every_handler_and_no_other(broker: odradek.Broker, controller: odradek.Broker) -> None:
    for running, marks in ((broker, OF_ONE), (controller, [*OF_ONE, *OF_CLUSTERS])):
        paths = document_of(running)["paths"]
        said = {f"{method.upper()} {path}" for path, methods in paths.items() for method in methods}
        assert said == {mark.line for mark in marks}
    for handler_type in (ControlServer, DiskFaults, ClusterRequests):
        handlers = {
            name
            for name, member in vars(handler_type).items()
            if inspect.iscoroutinefunction(member) and {"given", "_given"} & inspect.signature(member).parameters.keys()
        }
        assert handlers == {name for name, _ in operations_of(handler_type)}


def test_the_broker_checks_each_keyword_of_its_schemas() -> None:
    for mark in (*OF_ONE, *OF_CLUSTERS):
        for part in (mark.parameter_schema, mark.body, mark.answer):
            for schema in schemas_in(part):
                assert schema.keys() <= KEYWORDS, mark.line


def test_examples_are_answered_as_declared(broker: odradek.Broker) -> None:
    document = document_of(broker)
    done = [check_answer(broker, mark, document) for mark in OF_ONE if mark.method == "POST"]
    assert len(done) >= 6
    servers = {"bootstrap.servers": broker.bootstrap_servers}
    producer = Producer({**servers, "client.id": "shop"})
    producer.produce("orders", b"A2", partition=0)
    consumer = Consumer({**servers, "group.id": "billing", "auto.offset.reset": "earliest"})
    consumer.subscribe(["orders"])
    assert producer.flush(60) == 0
    for _ in range(2):
        message = consumer.poll(60)
        assert message is not None
        assert message.error() is None
    consumer.commit(asynchronous=False)
    eventually(
        "the group is stable", lambda: (broker.group("billing") or {}).get("state"), lambda state: state == "Stable"
    )
    found = {mark.path: check_answer(broker, mark, document) for mark in OF_ONE if mark.method == "GET"}
    assert [each["hits"] for each in found["faults"]["faults"]] == [2]
    assert [each["errors"] for each in found["requests"]["requests"]] == [["NOT_LEADER_OR_FOLLOWER"]] * 2 + [[]]
    assert [each["value"] for each in found["records"]["records"]] == ["bmV3", "QTI="]
    (group,) = found["groups"]["groups"]
    assert group["members"][0]["partitions"]
    assert {"topic": "orders", "partition": 0, "offset": 2} in group["offsets"]
    consumer.close()
    for mark in OF_ONE:
        if mark.method == "DELETE":
            check_answer(broker, mark, document)
    assert broker.topics() == []


def test_examples_of_clusters_are_answered_as_declared(controller: odradek.Broker) -> None:
    document = document_of(controller)
    for mark in OF_CLUSTERS:
        assert check_answer(controller, mark, document) == {}
