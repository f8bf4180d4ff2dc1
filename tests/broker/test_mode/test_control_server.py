"""The control API over plain HTTP: what a client in another language meets."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator, Mapping

import pytest

import odradek


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
        ("GET", "/", None, 404, "no GET /"),
        ("GET", "/v2/topics", None, 404, "no GET /v2/topics"),
        ("PUT", "/v1/topics", None, 404, "no PUT /v1/topics"),
        ("DELETE", "/v1/topics", None, 404, "name the topic: DELETE /v1/topics/NAME"),
        ("POST", "/v1/topics", "{", 400, "the body is not JSON: "),
        ("POST", "/v1/topics", "[]", 400, "the body is not a JSON object"),
        ("POST", "/v1/topics", "{}", 400, "name is not a string"),
        ("POST", "/v1/topics", '{"name": "a", "partitions": "3"}', 400, "partitions is not an integer"),
        ("POST", "/v1/records", '{"topic": "flights"}', 400, "records is empty"),
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
        ("network", "{}", 400, "links is not a list of objects"),
        ("network", '{"links": [{"port": 1, "latency_ms": -1}]}', 400, "latency_ms is not a number of at least 0: -1"),
        ("reassignments", '{"replicas": [1]}', 400, "topic is a string, and partition an integer"),
        ("reassignments", '{"topic": "flights", "replicas": "1"}', 400, "replicas is not a list of broker ids"),
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
