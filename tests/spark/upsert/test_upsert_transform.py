"""The changes parsed from records, on static frames: the key, the fields, whether it is deleted, or the error."""

from __future__ import annotations

import datetime as dt
import json
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from spark_jobs.upserts.changes import ChangeFormat, parse_changes
from tests.spark.upsert.upserts import form_of, frame_of

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

pytestmark = pytest.mark.spark

SCHEMA = "id INT, name STRING, size DOUBLE"


def changes(spark: SparkSession, form: ChangeFormat, *records: tuple[bytes | None, bytes | None]) -> list[Row]:
    return parse_changes(frame_of(spark, records), form).orderBy("kafka_offset").collect()


def envelope(op: str | None, *, before: Any = None, after: Any = None, lsn: int | None = 7, **more: Any) -> bytes:
    event = {"before": before, "after": after, "op": op, "ts_ms": 9, "source": {"lsn": lsn, "ts_ms": 5}, "extra": 1}
    return json.dumps(event | more).encode()


def test_a_null_value_deletes_the_row_of_its_key(spark: SparkSession) -> None:
    numbers = [b'{"id": 4}', b'{"schema": {"type": "struct"}, "payload": {"id": 4}}', b"4"]
    texts = {b"4": "4", b"007": "007", b'"four"': "four", b"fo,ur": "fo,ur", b'"a","b"': '"a","b"'}
    rows = changes(spark, form_of("id INT, name STRING"), *((key, None) for key in numbers))
    assert [(row.id, row._deleted, row.dead_letter_reason) for row in rows] == [(4, True, None)] * 3
    rows = changes(spark, form_of("id STRING, name STRING"), *((key, None) for key in texts))
    assert [(row.id, row._deleted, row.dead_letter_reason) for row in rows] == [
        (key, True, None) for key in texts.values()
    ]


def test_keys_come_from_the_value_or_else_from_the_record_key(spark: SparkSession) -> None:
    form = form_of("a INT, b STRING, n INT", keys=("a", "b"))
    rows = changes(spark, form, (None, b'{"a": 1, "b": "x", "n": 5}'), (b'{"a": 1, "b": "x"}', b'{"n": 6}'))
    assert [(row.a, row.b, row.n, row.dead_letter_reason) for row in rows] == [(1, "x", 5, None), (1, "x", 6, None)]


def test_what_is_no_change_says_why(spark: SparkSession) -> None:
    cases = [
        (b"x", None, "key id is missing or null"),
        (None, None, "key id is missing or null"),
        (b"1", b"", "not JSON of the schema"),
        (b"1", b"garbage", "not JSON of the schema"),
        (b"1", b"[1]", "not JSON of the schema"),
        (b"1", b'{"id": 1, "size": "big"}', "not JSON of the schema"),
        (None, b'{"name": "x"}', "key id is missing or null"),
        (b"1", b'{"name": null}', "field name is missing or null"),
        (b"1", b'{"name": "x"}', None),
    ]
    form = form_of("id INT, name STRING NOT NULL, size DOUBLE")
    rows = changes(spark, form, *((key, value) for key, value, _ in cases))
    assert [row.dead_letter_reason for row in rows] == [reason for _, _, reason in cases]


def test_rows_that_meet_the_condition_are_deleted(spark: SparkSession) -> None:
    form = form_of("id INT, state STRING", delete_when="state = 'closed'")
    values = [b'{"id": 1, "state": "open"}', b'{"id": 1, "state": "closed"}', b'{"id": 1}']
    rows = changes(spark, form, *((None, value) for value in values))
    assert [row._deleted for row in rows] == [False, True, False]


def test_a_condition_over_what_is_no_field_is_refused(spark: SparkSession) -> None:
    from pyspark.errors import AnalysisException

    with pytest.raises(AnalysisException, match="UNRESOLVED_COLUMN"):
        changes(spark, form_of("id INT", delete_when="state = 'closed'"), (None, b'{"id": 1}'))


def test_a_sequence_that_is_missing_is_a_dead_letter_unless_the_row_is_deleted(spark: SparkSession) -> None:
    form = form_of("id INT, at BIGINT", sequence_by=("at",))
    rows = changes(spark, form, (b"1", b'{"id": 1, "at": 3}'), (b"1", b'{"id": 1}'), (b"1", None))
    assert [row.dead_letter_reason for row in rows] == [None, "field at is missing or null", None]
    assert rows[0]._sequence.at == 3
    assert rows[2]._sequence is None


def test_debezium_envelopes_with_and_without_their_schema(spark: SparkSession) -> None:
    before, after = {"id": 1, "name": "a", "size": 1.5}, {"id": 1, "name": "b", "size": 2.5}
    bare = [
        envelope("c", after=before), envelope("u", before=before, after=after),
        envelope("d", before=after), envelope("r", after=after),
    ]  # fmt: skip
    wrapped = [json.dumps({"schema": {"type": "struct"}, "payload": json.loads(event)}).encode() for event in bare]
    rows = changes(spark, form_of(SCHEMA, envelope="debezium"), *((b'{"id": 1}', event) for event in bare + wrapped))
    assert [row.dead_letter_reason for row in rows] == [None] * 8
    expected = [(1, "a", 1.5, False), (1, "b", 2.5, False), (1, "b", 2.5, True), (1, "b", 2.5, False)]
    assert [(row.id, row.name, row.size, row._deleted) for row in rows] == expected * 2
    assert rows[0]._sequence.asDict() == {"lsn": 7, "ts_ms": 5}
    assert rows[0]._time.replace(tzinfo=None) == dt.datetime.fromtimestamp(0.005)  # noqa: DTZ006  what `collect` gives


def test_a_debezium_delete_and_a_tombstone_need_the_key_alone(spark: SparkSession) -> None:
    form = form_of(SCHEMA, envelope="debezium")
    rows = changes(spark, form, (b'{"id": 3}', envelope("d")), (b'{"id": 3}', None))
    assert [(row.id, row._deleted, row.dead_letter_reason) for row in rows] == [(3, True, None)] * 2


def test_debezium_events_that_change_no_row_say_why(spark: SparkSession) -> None:
    cases = {
        b"": "not JSON of the schema",
        b"[]": "not JSON of the schema",
        b'{"id": 1, "name": "x"}': "not a Debezium envelope: no op",
        envelope("t"): "op t is not a change of one row",
        envelope("u", before={"id": 1}): "op u without after",
        envelope("c", after={"id": 1, "size": "x"}): "not JSON of the schema",
        envelope("c", after={"id": 1}, ts_ms=None, source=None): "no ts_ms",
        envelope("u", after={"id": 1, "name": "__debezium_unavailable_value"}): (
            "field name is not in the event: set REPLICA IDENTITY FULL on the table"
        ),
    }
    rows = changes(spark, form_of(SCHEMA, envelope="debezium"), *((b'{"id": 1}', value) for value in cases))
    assert [row.dead_letter_reason for row in rows] == list(cases.values())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"keys": ("nope",)}, "--keys nope: must be fields"),
        ({"keys": ()}, "--keys: at least one"),
        ({"sequence_by": ("nope",)}, "--sequence-by nope: must be fields"),
    ],
)
def test_options_that_name_no_field_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        form_of(SCHEMA, **options)
