"""Schemas by id: from files, and from a registry over HTTP."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from spark_jobs.schemas import sources
from spark_jobs.schemas.decoders import MisfitError
from spark_jobs.schemas.framing import Decoders
from spark_jobs.schemas.sources import AVRO, JSON_SCHEMA, Schema, SchemaFiles, SchemaRegistry, UnknownSchemaError
from tests.spark.schemas.registry import Registry, avro, framed

pytestmark = pytest.mark.spark

ORDER = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "int"}]}


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "PAUSE_S", 0.001)


@pytest.fixture
def registry() -> Iterator[Registry]:
    server = Registry()
    yield server
    server.close()


def test_files_are_found_by_their_id_and_suffix(tmp_path: Path) -> None:
    (tmp_path / "7.avsc").write_text('"int"')
    (tmp_path / "12.json").write_text("{}")
    (tmp_path / "README.md").write_text("not a schema")
    files = SchemaFiles.read(str(tmp_path))
    assert files.schema(7) == Schema(AVRO, '"int"')
    assert files.schema(12) == Schema(JSON_SCHEMA, "{}")
    with pytest.raises(UnknownSchemaError, match="schema id 8: not in "):
        files.schema(8)


def test_a_directory_has_to_have_one_schema_for_each_id(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"--schemas .*: no file ID.avsc or ID.json"):
        SchemaFiles.read(str(tmp_path))
    (tmp_path / "7.avsc").write_text('"int"')
    (tmp_path / "07.json").write_text("{}")
    with pytest.raises(ValueError, match=r"--schemas .*: two files for the id 7"):
        SchemaFiles.read(str(tmp_path))


def test_a_registry_is_asked_once_for_each_id(registry: Registry) -> None:
    registry.add(1, ORDER)
    decoders = Decoders(AVRO, SchemaRegistry.at(registry.url))
    for _ in range(3):
        assert decoders.text(avro(1, ORDER, {"id": 5})) == '{"id": 5}'
        with pytest.raises(MisfitError, match=f"schema id 2: the registry {registry.url} does not have it"):
            decoders.text(framed(2, b"\n"))
    assert registry.asked == {"/schemas/ids/1": 1, "/schemas/ids/2": 1}


def test_an_id_that_was_unknown_is_asked_for_again_later(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    decoders = Decoders(AVRO, SchemaRegistry.at(registry.url))
    value = avro(1, ORDER, {"id": 5})
    assert decoders.text_or_none(value) is None
    registry.add(1, ORDER)
    assert decoders.text_or_none(value) is None
    monkeypatch.setattr("spark_jobs.schemas.framing.UNKNOWN_S", 0.0)
    assert decoders.text_or_none(value) == '{"id": 5}'


@pytest.mark.parametrize("with_references_of", ["AVRO", "JSON"])
def test_schemas_refer_to_others(registry: Registry, with_references_of: str) -> None:
    if with_references_of == "AVRO":
        named = {"name": "Order", **registry.add_version("orders", 3, ORDER)}
        schema = {"type": "record", "name": "Sale", "fields": [{"name": "order", "type": "Order"}]}
        whole = {**schema, "fields": [{"name": "order", "type": ORDER}]}
        registry.add(1, schema, references=(named,))
        decoders = Decoders(AVRO, SchemaRegistry.at(registry.url))
        assert decoders.text(avro(1, whole, {"order": {"id": 5}})) == '{"order": {"id": 5}}'
        return
    order = {"type": "object", "properties": {"id": {"type": "integer"}}}
    named = {"name": "order.json", **registry.add_version("orders", 3, order, kind="JSON")}
    registry.add(1, {"properties": {"order": {"$ref": "order.json"}}}, "JSON", (named,))
    decoders = Decoders(JSON_SCHEMA, SchemaRegistry.at(registry.url))
    assert decoders.text(framed(1, b'{"order": {"id": 5}}')) == '{"order": {"id": 5}}'
    with pytest.raises(MisfitError, match=r'^field order.id: expected type integer, found string "x"'):
        decoders.text(framed(1, b'{"order": {"id": "x"}}'))


def test_nothing_is_fetched_from_where_a_json_schema_points(registry: Registry) -> None:
    registry.add(1, {"properties": {"order": {"$ref": f"{registry.url}/schemas/ids/9"}}}, "JSON")
    decoders = Decoders(JSON_SCHEMA, SchemaRegistry.at(registry.url))
    with pytest.raises(MisfitError, match="refers to what the registry does not give"):
        decoders.text(framed(1, b'{"order": 1}'))
    assert registry.asked == {"/schemas/ids/1": 1}


@pytest.mark.parametrize("where", ["URL", "file"])
def test_a_registry_with_a_password(where: str) -> None:
    registry = Registry(user_and_password="spark:p@ss")
    try:
        registry.add(1, ORDER)
        place = registry.url.removeprefix("http://")
        asker = (
            SchemaRegistry.at(f"http://spark:p%40ss@{place}/")
            if where == "URL"
            else SchemaRegistry.at(registry.url, "spark:p@ss")
        )
        assert asker.schema(1).kind == AVRO
        assert "p@ss" not in repr(asker)
        assert asker.url == registry.url
        with pytest.raises(OSError, match=rf"^schema registry {registry.url}: answers 401 Unauthorized") as refused:
            SchemaRegistry.at(registry.url, "spark:wrong").schema(1)
        assert "wrong" not in str(refused.value)
        assert registry.asked["/schemas/ids/1"] == 2
    finally:
        registry.close()


def test_a_registry_that_cannot_say_is_asked_again_and_then_named(registry: Registry) -> None:
    registry.failure = 500
    with pytest.raises(OSError, match=rf"^schema registry {registry.url}: answers 500 .* \(GET /schemas/ids/1\)$"):
        SchemaRegistry.at(registry.url).schema(1)
    assert registry.asked["/schemas/ids/1"] == sources.ATTEMPTS


def test_a_wrong_path_is_not_an_unknown_schema(registry: Registry) -> None:
    with pytest.raises(
        OSError, match=rf"^schema registry {registry.url}/api: answers 404 Not Found .*is this the registry's address"
    ):
        SchemaRegistry.at(f"{registry.url}/api").schema(1)


def test_nobody_is_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(OSError, match=rf"^schema registry http://127.0.0.1:{port}: cannot be reached: .*refused"):
        SchemaRegistry.at(f"http://127.0.0.1:{port}").schema(1)


def test_a_registry_that_is_silent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        asker = SchemaRegistry(f"http://127.0.0.1:{silent.getsockname()[1]}", timeout_s=0.05)
        with pytest.raises(OSError, match=r"^schema registry http.*: does not answer in time"):
            asker.schema(1)


@pytest.mark.parametrize("url", ["127.0.0.1:8081", "ftp://a", "http://", "file:///etc/passwd"])
def test_what_is_no_url_of_a_registry(url: str) -> None:
    with pytest.raises(ValueError, match=r"^--registry: must be a URL like"):
        SchemaRegistry.at(url)
