"""The control API over plain HTTP: what a client in another language meets."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator, Mapping

import pytest

import odradek

TOPICS = "GET /v1/topics, POST /v1/topics, DELETE /v1/topics/{name}"
FIELDS = "name, partitions, replication_factor, config"
PARAMETERS = "topic, partition, from, isolation"
LINK = "port, sends, receives, latency_ms"
CONTENT = "; allowed: key, value, headers, timestamp"


@pytest.fixture(scope="module")
def broker() -> Iterator[odradek.Broker]:
    with odradek.Broker() as running:
        running.create_topic("flights")
        yield running


def ask(
    broker: odradek.Broker, method: str, path: str, body: str | None = None, headers: Mapping[str, str] | None = None
) -> tuple[int, dict[str, object]]:
    """The status and the JSON of an answer. Without `headers` the request has the token."""
    connection = http.client.HTTPConnection(broker.control_url.removeprefix("http://"), timeout=60)
    given = {"Authorization": f"Bearer {broker.control_token}"} if headers is None else headers
    connection.request(method, path, body, dict(given))
    response = connection.getresponse()
    answer = json.loads(response.read())
    connection.close()
    return response.status, answer


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic eDp5"}])
def test_a_request_needs_the_token(broker: odradek.Broker, headers: dict[str, str]) -> None:
    assert ask(broker, "GET", "/v1/topics", headers=headers) == (
        401,
        {"error": "the header Authorization must be: Bearer <token>"},
    )


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "message"),
    [
        ("GET", "/", None, 404, "no GET /; GET /v1/openapi.json has all requests"),
        ("GET", "/v2/topics", None, 404, "no GET /v2/topics"),
        ("PUT", "/v1/topics", None, 404, "no PUT /v1/topics"),
        ("DELETE", "/v1/topics", None, 404, f"no DELETE /v1/topics; there is: {TOPICS}"),
        ("POST", "/v1/topics", "{", 400, "the body is not JSON: "),
        ("POST", "/v1/topics", "[]", 400, "the body is not a JSON object"),
        ("POST", "/v1/topics", "{}", 400, "name is missing; required: name"),
        ("POST", "/v1/topics", '{"name": 1}', 400, "name is not a string: 1"),
        ("POST", "/v1/topics", '{"name": "a", "partitions": "3"}', 400, 'partitions is not an integer: "3"'),
        ("POST", "/v1/topics", '{"name": "a", "partition": 3}', 400, f"unknown field partition; allowed: {FIELDS}"),
        ("POST", "/v1/topics?x=1", '{"name": "a"}', 400, "unknown parameter x; allowed: none"),
        ("POST", "/v1/topics", '{"name": "a", "config": {"a": []}}', 400, "config.a is not a string or a number or"),
        ("GET", "/v1/topics", '{"name": "a"}', 400, "unknown field name; allowed: none"),
        ("GET", "/v1/records", None, 400, "topic is missing; required: topic"),
        ("GET", "/v1/records?topic=a&first=1", None, 400, f"unknown parameter first; allowed: {PARAMETERS}"),
        ("GET", "/v1/records?topic=flights&from=-1", None, 400, "from is not at least 0: -1"),
        ("GET", "/v1/records?topic=a&isolation=x", None, 400, "isolation is not one of read_committed, read_uncommi"),
        ("DELETE", "/v1/topics/flights?name=x", None, 400, "unknown parameter name; allowed: none"),
        ("DELETE", "/v1/faults/x", None, 400, "id is not an integer: x"),
        ("POST", "/v1/logs", '{"do": "clean"}', 400, 'do is not one of compact, retention: "clean"'),
        ("POST", "/v1/clock", '{"freeze": 1}', 400, "freeze is not true or false: 1"),
        ("POST", "/v1/clock", '{"advance_ms": true}', 400, "advance_ms is not an integer: true"),
        ("POST", "/v1/records", '{"topic": "flights"}', 400, "records is missing; required: topic, records"),
        ("POST", "/v1/records", '{"topic": "a", "records": []}', 400, "the length of records is not at least 1: 0"),
        (
            "POST",
            "/v1/records",
            '{"topic": "a", "records": [{"v": 1}]}',
            400,
            f"unknown field v of records[0]{CONTENT}",
        ),
        (
            "POST",
            "/v1/records",
            '{"topic": "a", "records": [{"headers": [["a", 1]]}]}',
            400,
            "records[0].headers[0][1] is not a string or null: 1",
        ),
        ("POST", "/v1/records", '{"topic": "flights", "records": [{"value": "%"}]}', 400, "not Base64: '%'"),
        ("GET", "/v1/records?topic=flights&partition=x", None, 400, "partition is not an integer: x"),
        ("POST", "/v1/topics", '{"name": "flights"}', 409, "Topic 'flights' already exists."),
    ],
)
def test_a_wrong_request_is_named(
    broker: odradek.Broker, method: str, path: str, body: str | None, status: int, message: str
) -> None:
    answered, content = ask(broker, method, path, body)
    assert (answered, str(content["error"])[: len(message)]) == (status, message)


def test_one_connection_serves_many_requests(broker: odradek.Broker) -> None:
    connection = http.client.HTTPConnection(broker.control_url.removeprefix("http://"), timeout=60)
    for _ in range(3):
        connection.request("GET", "/v1/broker", headers={"Authorization": f"Bearer {broker.control_token}"})
        described = json.loads(connection.getresponse().read())
        assert f"127.0.0.1:{described['ports']['PLAINTEXT']}" == broker.bootstrap_servers
    connection.close()


def test_what_is_not_http_is_refused(broker: odradek.Broker) -> None:
    host, _, port = broker.control_url.removeprefix("http://").rpartition(":")
    with socket.create_connection((host, int(port)), timeout=60) as client:
        client.sendall(b"\x16\x03\x01 no http\r\n\r\n")
        assert client.makefile("rb").read().startswith(b"HTTP/1.1 400 Bad Request\r\n")


@pytest.fixture(scope="module")
def member() -> Iterator[odradek.Broker]:
    with odradek.Cluster(brokers=2) as cluster:
        cluster.create_topic("flights")
        yield cluster.broker(cluster.await_controller())


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("network", "{}", 400, "links is missing; required: links"),
        ("network", '{"links": [1]}', 400, "links[0] is not an object: 1"),
        ("network", '{"links": [{"ports": 1}]}', 400, f"unknown field ports of links[0]; allowed: {LINK}"),
        ("network", '{"links": [{"port": "1"}]}', 400, 'links[0].port is not an integer: "1"'),
        ("network", '{"links": [{"port": 1, "sends": 0}]}', 400, "links[0].sends is not true or false: 0"),
        ("network", '{"links": [{"port": 1, "latency_ms": -1}]}', 400, "links[0].latency_ms is not at least 0: -1"),
        ("reassignments", '{"replicas": [1]}', 400, "topic is missing; required: topic, replicas"),
        ("reassignments", '{"topic": "flights", "replicas": "1"}', 400, 'replicas is not a list: "1"'),
        ("reassignments", '{"topic": "flights", "replicas": [9]}', 409, "INVALID_REPLICA_ASSIGNMENT"),
        ("elections", '{"topic": "missing"}', 409, "UNKNOWN_TOPIC_OR_PARTITION"),
    ],
)
def test_a_wrong_request_to_a_cluster_is_named(
    member: odradek.Broker, path: str, body: str, status: int, message: str
) -> None:
    answered, answer = ask(member, "POST", f"/v1/{path}", body)
    assert answered == status
    assert message in {answer["error"], answer.get("error_name")}


def test_a_broker_of_a_cluster_says_who_is_there(member: odradek.Broker) -> None:
    status, answer = ask(member, "GET", "/v1/broker")
    assert status == 200
    assert answer["broker_id"] == answer["controller_id"]
    ports = answer["ports"]
    assert isinstance(ports, dict)
    brokers = answer["brokers"]
    assert isinstance(brokers, dict)
    assert brokers[str(answer["broker_id"])] == ports["PLAINTEXT"]
    assert set(brokers) == {"1", "2"}
    assert ask(member, "POST", "/v1/network", '{"links": []}') == (200, {})
    assert ask(member, "POST", "/v1/elections", '{"topic": "flights"}') == (200, {})
