"""End to end: framed values of a topic, their schemas from a registry over HTTP, jobs that are stopped and
restarted.
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

V1 = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "int"}, {"name": "shop", "type": "string"}]}
V2 = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "size", "type": ["null", "double"]},
        {"name": "shop", "type": {"type": "enum", "name": "Shop", "symbols": ["north", "south"]}},
        {"name": "id", "type": "long"},
    ],
}
DDL = "id INT NOT NULL, shop STRING, size DOUBLE"
ORDERS: list[dict[str, Any]] = [
    {"id": number, "shop": ("north", "south")[number % 2], "size": number / 4 if number % 3 == 0 else None}
    for number in range(1000)
]
MORE = ORDERS[600:]
BAD = {
    framed(9, b"\x02"): "schema id 9: the registry {url} does not have it",
    b'{"id": 1}': "byte 0: expected 0x00, the first byte of a framed value, found 0x7b",
    b"\0\0": "byte 2: expected a schema id of 4 bytes, found the end of the value",
    framed(1, b"\x02"): 'field shop: expected Avro "string" at byte 6, found the end of the value (schema id 1)',
    avro(2, V2, {"size": None, "shop": "north", "id": 2**40}): (
        "field id: expected INT, found number 1099511627776 (out of range) (schema id 2)"
    ),
    None: "value is null",
}


def value(order: dict[str, Any]) -> bytes:
    """The value from the producer that had the schema when the order came in: only the second one has sizes."""
    return avro(1, V1, order) if order["size"] is None else avro(2, V2, order)


@pytest.fixture
def registry() -> Iterator[Registry]:
    server = Registry(user_and_password="spark:secret")
    server.add(1, V1)
    server.add(2, V2)
    yield server
    server.close()


@pytest.fixture
def options(bootstrap: str, registry: Registry, tmp_path: Path) -> list[str]:
    """Common options of the jobs, except for the topics."""
    (tmp_path / "orders.ddl").write_text(DDL)
    (tmp_path / "registry.auth").write_text("spark:secret\n")
    return [
        *("--bootstrap-servers", bootstrap, "--schema", str(tmp_path / "orders.ddl"), "--value-format", "avro"),
        *("--registry", registry.url, "--registry-auth", str(tmp_path / "registry.auth")),
    ]  # fmt: skip


def rows(directory: Path) -> list[dict[str, Any]]:
    files = pyarrow.dataset.dataset(directory, partitioning="hive", exclude_invalid_files=True)
    table: pa.Table = files.to_table()
    return [dict(row) for row in table.to_pylist()]


def orders_of(directory: Path) -> list[dict[str, Any]]:
    found = [{name: row[name] for name in ("id", "shop", "size")} for row in rows(directory)]
    return sorted(found, key=lambda order: order["id"])


def test_the_lake_goes_on_after_its_registry_was_away(
    jobs: WarmJobs, bootstrap: str, registry: Registry, options: list[str], tmp_path: Path
) -> None:
    (topic,) = make_topics(bootstrap, "orders")
    produce_values(bootstrap, topic, [*map(value, ORDERS[:600]), *BAD])
    command = [
        *options, "--topics", topic, "--partition-by", "topic",
        "--output", str(tmp_path / "table"), "--checkpoint", str(tmp_path / "checkpoint"),
    ]  # fmt: skip
    code, said = jobs.run("lake", *command)
    assert (code, said.splitlines()[0]) == (0, f"lake: 600 records and {len(BAD)} dead letters in 1 batches")
    assert orders_of(tmp_path / "table") == ORDERS[:600]
    wanted = {value: reason.format(url=registry.url) for value, reason in BAD.items()}
    letters = rows(tmp_path / "table-dead-letters")
    assert {letter["value"]: letter["dead_letter_reason"] for letter in letters} == wanted
    assert len(letters) == len(BAD)
    # Two tasks at a time, in two Python processes.
    assert registry.asked.keys() == {f"/schemas/ids/{number}" for number in (1, 2, 9)}
    assert max(registry.asked.values()) <= 2

    produce_values(bootstrap, topic, [*map(value, MORE)])
    registry.failure = 503
    code, said = jobs.run("lake", *command)
    assert code == 1
    told = [line for line in said.splitlines() if line.startswith("lake: ")]
    assert len(told) == 1, said
    assert told[0].startswith(
        f"lake: schema registry {registry.url}: answers 503 Service Unavailable (GET /schemas/ids/"
    )
    assert "Traceback" not in said
    assert "secret" not in said
    assert orders_of(tmp_path / "table") == ORDERS[:600]

    registry.failure = None
    code, said = jobs.run("lake", *command)
    assert (code, said.splitlines()[0]) == (0, "lake: 400 records and 0 dead letters in 1 batches")
    assert orders_of(tmp_path / "table") == ORDERS
    assert len(rows(tmp_path / "table-dead-letters")) == len(BAD)


def test_aggregates_and_rules_see_the_same_values(
    jobs: WarmJobs, bootstrap: str, options: list[str], tmp_path: Path
) -> None:
    (topic,) = make_topics(bootstrap, "orders")
    produce_values(bootstrap, topic, [*map(value, ORDERS), *BAD])
    code, said = jobs.run(
        "aggregate", *options, "--topics", topic, "--window", "1000d", "--group-by", "shop", "--mode", "update",
        "--agg", "count,sum:size", "--output", str(tmp_path / "sums"), "--dead-letters", str(tmp_path / "rejects"),
        "--checkpoint", str(tmp_path / "aggregate"),
    )  # fmt: skip
    assert (code, said.splitlines()[0]) == (
        0,
        f"aggregate: {len(ORDERS) + len(BAD):,} records, {len(BAD)} that do not parse, 0 late; 2 rows in 1 batches",
    )
    sums = {row["shop"]: (row["count"], row["sum_size"]) for row in rows(tmp_path / "sums")}
    assert sums == {
        shop: (500, sum(order["size"] or 0 for order in ORDERS if order["shop"] == shop)) for shop in ("north", "south")
    }
    assert {row["value"] for row in rows(tmp_path / "rejects")} == set(BAD)

    (tmp_path / "rules.yaml").write_text(json.dumps({"rules": [{"name": "small", "expect": "id < 900"}]}))
    code, said = jobs.run(
        "quality", *options, "--topics", topic, "--rules", str(tmp_path / "rules.yaml"),
        "--output", str(tmp_path / "good"), "--dead-letters", str(tmp_path / "bad"),
        "--checkpoint", str(tmp_path / "quality"),
    )  # fmt: skip
    assert (code, said.splitlines()[0]) == (
        0,
        f"quality: 900 good and {100 + len(BAD)} bad records in 1 batches; 100 break small",
    )
    assert orders_of(tmp_path / "good") == ORDERS[:900]
    bad = rows(tmp_path / "bad")
    assert {row["kafka_value"] for row in bad} == {*BAD, *map(value, ORDERS[900:])}
    assert {row["error"] for row in bad if row["kafka_value"] == framed(1, b"\x02")} == {BAD[framed(1, b"\x02")]}


def test_what_is_wrong_with_the_options_is_one_line(jobs: WarmJobs, options: list[str], tmp_path: Path) -> None:
    wrong = {
        ("--value-format", "avro"): "--value-format avro: needs --registry or --schemas",
        ("--value-format", "avro", "--schemas", str(tmp_path)): f"--schemas {tmp_path}: no file ID.avsc or ID.json",
        (
            "--value-format",
            "avro",
            "--registry",
            "localhost:8081",
        ): "--registry: must be a URL like http://127.0.0.1:8081",
        ("--registry", "http://127.0.0.1:1"): "--registry: needs --value-format avro or json-schema",
    }
    common = [*options[:4], "--topics", "t", "--output", str(tmp_path / "o"), "--checkpoint", str(tmp_path / "c")]
    for given, line in wrong.items():
        code, said = jobs.run("lake", *common, *given)
        assert (code, [told for told in said.splitlines() if told.startswith("lake: ")]) == (2, [f"lake: {line}"])
