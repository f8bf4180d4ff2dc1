"""SCRAM users that are created before brokers start."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.security import first_users
from tests.kit.zookeeper import new_session, served_tree

NODE = "/config/users/o%27hara%2C%20a%25"


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with served_tree(tmp_path_factory.mktemp("tree")) as server:
        yield server.address


def run(directory: Path, connect: str, users: str, mechanisms: str = "PLAIN,SCRAM-SHA-512") -> int:
    """The exit code."""
    (directory / "server.properties").write_text(f"zookeeper.connect={connect}\nsasl.enabled.mechanisms={mechanisms}\n")
    (directory / "users.properties").write_text(users)
    return first_users.main([str(directory / "server.properties"), str(directory / "users.properties")])


def config_of(connect: str, node: str = NODE) -> dict[str, str]:
    """The configuration of a user."""

    async def read() -> bytes:
        session = new_session(connect)
        await session.connect()
        try:
            return (await session.get(node))[0] or b""
        finally:
            await session.close()

    found: dict[str, Any] = json.loads(asyncio.run(read()))
    config: dict[str, str] = found["config"]
    return config


def write(connect: str, config: dict[str, str]) -> None:
    """Replace the user's stored configuration."""

    async def change() -> None:
        session = new_session(connect)
        await session.connect()
        try:
            await session.set(NODE, json.dumps({"version": 1, "config": config}).encode())
        finally:
            await session.close()

    asyncio.run(change())


def test_users_are_made_once(tree: str, tmp_path: Path) -> None:
    connect, users = f"{tree}/once", "o'hara,\\ a%=se cret\n"
    assert run(tmp_path, connect, users) == 0
    made = config_of(connect)
    assert list(made) == ["SCRAM-SHA-512"]
    parts = dict(part.split("=", 1) for part in made["SCRAM-SHA-512"].split(","))
    assert parts["iterations"] == "4096"
    write(connect, {**made, "producer_byte_rate": "1"})
    # A second start adds the missing ones and keeps the rest.
    assert run(tmp_path, connect, users, "SCRAM-SHA-256,SCRAM-SHA-512") == 0
    again = config_of(connect)
    assert again.keys() == {"SCRAM-SHA-256", "SCRAM-SHA-512", "producer_byte_rate"}
    assert again["SCRAM-SHA-512"] == made["SCRAM-SHA-512"]


def test_no_password_is_changed(tree: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    connect = f"{tree}/kept"
    assert run(tmp_path, connect, "alice=one\n") == 0
    made = config_of(connect, "/config/users/alice")
    assert run(tmp_path, connect, "alice=two\n") == 1
    said = f"user alice has at {connect} another password for SCRAM-SHA-512 than here"
    assert capsys.readouterr().err == f"{tmp_path}/users.properties: {said}\n"
    assert config_of(connect, "/config/users/alice") == made


@pytest.mark.parametrize(
    ("connect", "users", "message"),
    [
        ("", "alice=one\n", "the users are kept in the ZooKeeper that it names"),
        ("nowhere", "alice=\\u00\n", "must be followed by four hexadecimal digits"),
    ],
)
def test_what_cannot_be_used_is_named(
    connect: str, users: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, connect, users) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


def test_a_damaged_credential_is_named(tree: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    connect, users = f"{tree}/damaged", "o'hara,\\ a%=one\n"
    assert run(tmp_path, connect, users) == 0
    write(connect, {"SCRAM-SHA-512": "salt=c2FsdA=="})
    assert run(tmp_path, connect, users) == 1
    assert "SCRAM-SHA-512 of user o'hara, a%: not a SCRAM credential: 'stored_key'" in capsys.readouterr().err
