"""A registry learns a schema after a job died in a batch: the next attempt replaces everything that the first one
wrote.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
import pyarrow.dataset  # type: ignore[import-untyped]

from tests.spark.job_runs import make_topics, produce_values
from tests.spark.schemas.registry import Registry, avro, framed
from tests.spark.warm_jobs import WarmJobs

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "int"}, {"name": "shop", "type": "string"}],
}
DDL = "id INT NOT NULL, shop STRING"
KNOWN, LATE = 1, 2
FIRST = avro(KNOWN, ORDER, {"id": 1, "shop": "north"})
SECOND = avro(LATE, ORDER, {"id": 2, "shop": "south"})


@pytest.fixture
def registry() -> Iterator[Registry]:
    server = Registry()
    server.add(KNOWN, ORDER)
    yield server
    server.close()


@pytest.fixture
def options(bootstrap: str, registry: Registry, tmp_path: Path) -> list[str]:
    """Options of a job that reads both orders into `table` and `letters`."""
    (topic,) = make_topics(bootstrap, "orders", partitions=1)
    produce_values(bootstrap, topic, [FIRST, SECOND])
    (tmp_path / "orders.ddl").write_text(DDL)
    return [
        *("--bootstrap-servers", bootstrap, "--topics", topic, "--schema", str(tmp_path / "orders.ddl")),
        *("--value-format", "avro", "--registry", registry.url, "--output", str(tmp_path / "table")),
        *("--dead-letters", str(tmp_path / "letters"), "--checkpoint", str(tmp_path / "checkpoint")),
    ]


def rows(directory: Path) -> list[dict[str, Any]]:
    if not directory.exists():
        return []
    files = pyarrow.dataset.dataset(directory, partitioning="hive", exclude_invalid_files=True)
    table: pa.Table = files.to_table()
    return [dict(row) for row in table.to_pylist()]


def ids(directory: Path) -> list[int]:
    return sorted(row["id"] for row in rows(directory))


def forget_commit(directory: Path, batch: str = "0") -> None:
    """Remove the commit of a checkpoint, or of a table of snapshots, as if it had died just before it."""
    (directory / batch).unlink()
    (directory / f".{batch}.crc").unlink()


def test_the_lake(jobs: WarmJobs, registry: Registry, options: list[str], tmp_path: Path) -> None:
    command = [*options, "--partition-by", "shop"]
    code, said = jobs.run("lake", *command, "--registry", f"{registry.url}/api")
    assert code == 1
    asked = "is this the registry's address? (GET /schemas/ids/1)"
    assert [line for line in said.splitlines() if line.startswith("lake: ")] == [
        f"lake: schema registry {registry.url}/api: answers 404 Not Found and no word about a schema: {asked}"
    ]
    # The job dies between the table and the dead letters: a file blocks their directory.
    (tmp_path / "letters").touch()
    code, said = jobs.run("lake", *command)
    assert (code, ids(tmp_path / "table")) == (1, [1])
    assert "not a directory" in next(line for line in said.splitlines() if line.startswith("lake: ")), said
    (tmp_path / "letters").unlink()
    registry.add(LATE, ORDER)
    code, said = jobs.run("lake", *command)
    assert (code, said.splitlines()[0]) == (0, "lake: 2 records and 0 dead letters in 1 batches")
    assert (ids(tmp_path / "table"), rows(tmp_path / "letters")) == ([1, 2], [])
    # Dies after both, and the registry loses the schema.
    forget_commit(tmp_path / "checkpoint" / "commits")
    registry.forget(LATE)
    code, said = jobs.run("lake", *command)
    assert (code, said.splitlines()[0]) == (0, "lake: 1 records and 1 dead letters in 1 batches")
    assert (ids(tmp_path / "table"), [row["value"] for row in rows(tmp_path / "letters")]) == ([1], [SECOND])
    # Dies after both, and the registry learns it.
    forget_commit(tmp_path / "checkpoint" / "commits")
    registry.add(LATE, ORDER)
    assert jobs.run("lake", *command)[0] == 0
    assert (ids(tmp_path / "table"), rows(tmp_path / "letters")) == ([1, 2], [])


def test_quality(jobs: WarmJobs, registry: Registry, options: list[str], tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(json.dumps({"rules": [{"name": "positive", "expect": "id > 0"}]}))
    command = [*options, "--rules", str(tmp_path / "rules.yaml")]
    assert jobs.run("quality", *command)[0] == 0
    assert (ids(tmp_path / "table"), [row["kafka_value"] for row in rows(tmp_path / "letters")]) == ([1], [SECOND])
    forget_commit(tmp_path / "checkpoint" / "commits")
    registry.add(LATE, ORDER)
    assert jobs.run("quality", *command)[0] == 0
    assert (ids(tmp_path / "table"), rows(tmp_path / "letters")) == ([1, 2], [])


def test_upsert(jobs: WarmJobs, registry: Registry, options: list[str], tmp_path: Path) -> None:
    command = [*options, "--keys", "id"]
    code, said = jobs.run("upsert", *command)
    assert (code, said.splitlines()[0]) == (
        0,
        "upsert: 1 changes and 1 dead letters in 1 batches; the table has 1 rows",
    )
    (letter,) = rows(tmp_path / "letters")
    assert (letter["value"], letter["dead_letter_reason"]) == (
        SECOND,
        f"schema id {LATE}: the registry {registry.url} does not have it",
    )
    forget_commit(tmp_path / "checkpoint" / "commits")
    forget_commit(tmp_path / "table" / "_commits", f"{0:020}.json")
    registry.add(LATE, ORDER)
    assert jobs.run("upsert", *command)[0] == 0
    commit = json.loads((tmp_path / "table" / "_commits" / f"{0:020}.json").read_text())
    assert (ids(tmp_path / "table" / commit["rows"]), rows(tmp_path / "letters")) == ([1, 2], [])


def test_a_join_of_values_of_json_schemas(jobs: WarmJobs, bootstrap: str, registry: Registry, tmp_path: Path) -> None:
    """The results and the dead letters of a stateful job."""
    orders, shops = make_topics(bootstrap, "orders", "shops", partitions=1)
    places = {"type": "object", "properties": {"shop": {"type": "string"}}, "required": ["city"]}
    registry.add(5, {"type": "object", "required": ["id"]}, "JSON")
    registry.add(6, places, "JSON")
    late = framed(7, b'{"id": 2, "shop": "north"}')
    produce_values(bootstrap, orders, [framed(5, b'{"id": 1, "shop": "north"}'), late])
    produce_values(bootstrap, shops, [framed(6, b'{"shop": "north", "city": "Oslo"}'), framed(6, b'{"shop": "south"}')])
    (tmp_path / "orders.ddl").write_text(DDL)
    (tmp_path / "shops.ddl").write_text("shop STRING, city STRING")
    command = [
        *("--bootstrap-servers", bootstrap, "--left", orders, "--left-schema", str(tmp_path / "orders.ddl")),
        *("--right", shops, "--right-schema", str(tmp_path / "shops.ddl"), "--on", "shop", "--within", "1h"),
        *("--value-format", "json-schema", "--registry", registry.url, "--output", str(tmp_path / "table")),
        *("--dead-letters", str(tmp_path / "letters"), "--checkpoint", str(tmp_path / "checkpoint")),
    ]
    assert jobs.run("join", *command)[0] == 0
    assert [(row["id"], row["city"]) for row in rows(tmp_path / "table")] == [(1, "Oslo")]
    misfit = "field city: expected by the schema, found no such field (schema id 6)"
    unknown = f"schema id 7: the registry {registry.url} does not have it"
    assert {row["value"]: row["dead_letter_reason"] for row in rows(tmp_path / "letters")} == {
        late: unknown,
        framed(6, b'{"shop": "south"}'): misfit,
    }
    for commit in (tmp_path / "checkpoint" / "commits").glob("[0-9]*"):
        forget_commit(tmp_path / "checkpoint" / "commits", commit.name)
    for name in ("offsets/1", "offsets/.1.crc"):
        (tmp_path / "checkpoint" / name).unlink(missing_ok=True)
    registry.add(7, {"type": "object", "required": ["id"]}, "JSON")
    assert jobs.run("join", *command)[0] == 0
    assert sorted((row["id"], row["city"]) for row in rows(tmp_path / "table")) == [(1, "Oslo"), (2, "Oslo")]
    assert [row["dead_letter_reason"] for row in rows(tmp_path / "letters")] == [misfit]
