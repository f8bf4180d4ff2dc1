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
