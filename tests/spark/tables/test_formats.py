"""Tables in Delta and Iceberg: killed in a batch, rerun, compacted; each row exists once, and versions stay."""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from spark_jobs.tables.formats import DELTA, ICEBERG
from tests.kit.due import due
from tests.spark.job_runs import JobRun, make_topics, produce_values
from tests.spark.warm_jobs import WarmJobs

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

RECORDS = 3000
_DUE = due([(test, kind) for kind in (DELTA, ICEBERG) for test in ("lake", "other jobs")])


@pytest.fixture(scope="module")
def jobs_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], WarmJobs]]:
    """The process of the jobs for a format, with only that format's jars."""
    with contextlib.ExitStack() as ending:

        @functools.cache
        def of(kind: str) -> WarmJobs:
            return ending.enter_context(contextlib.closing(WarmJobs(tmp_path_factory.mktemp(kind))))

        yield of


def read(jobs: WarmJobs, kind: str, what: str, *arguments: str) -> Any:
    """Run `tests.spark.tables.reader` in the JVM of the jobs, and return its output."""
    code, said = jobs.run("tests.spark.tables.reader", "--format", kind, what, *arguments)
    assert code == 0, said[-5000:]
    return json.loads(said.splitlines()[0])


@pytest.mark.parametrize("kind", [kind for test, kind in _DUE if test == "lake"])
def test_each_record_is_there_once(
    kind: str, jobs_of: Callable[[str], WarmJobs], bootstrap: str, tmp_path: Path
) -> None:
    (topic,) = make_topics(bootstrap, "numbers", partitions=2)
    produce_values(bootstrap, topic, [b"1"])  # not an object: a dead letter, without a second file of them to compact
    produce_values(bootstrap, topic, [b'{"id": %d}' % number for number in range(RECORDS)])
    (tmp_path / "numbers.ddl").write_text("id INT, note STRING")
    options = [
        *("--bootstrap-servers", bootstrap, "--topics", topic, "--schema", str(tmp_path / "numbers.ddl")),
        *("--output", str(tmp_path / "table"), "--checkpoint", str(tmp_path / "checkpoint"), "--format", kind),
    ]
    killed = JobRun("lake", tmp_path, *options, "--max-offsets-per-trigger", "700")
    killed.start()
    try:
        killed.await_text("batch 1:")
    finally:
        killed.kill()
    whole = [RECORDS, RECORDS, sum(range(RECORDS))]
    jobs = jobs_of(kind)
    code, said = jobs.run("lake", *options, "--max-offsets-per-trigger", "700")
    assert code == 0, said
    last = max(int(path.name) for path in (tmp_path / "checkpoint" / "commits").glob("[0-9]*"))
    assert last == 4, "five batches of at most 700"
    owner = ["--output", str(tmp_path / "table"), "--checkpoint", str(tmp_path / "checkpoint"), "--min-files", "2"]
    code, said = jobs.run("lake", "compact", *owner, "--format", kind)
    assert code == 0, said
    assert "files became" in said
    # Dies after all writes, before Spark's commit; by now the rows of the batch share a file with others.
    for name in (str(last), f".{last}.crc"):
        (tmp_path / "checkpoint" / "commits" / name).unlink()
    code, said = jobs.run("lake", *options)
    assert code == 0, said
    assert said.splitlines()[0].endswith(" in 1 batches"), said
    found = read(jobs, kind, "versions", str(tmp_path / "table"))
    code, said = jobs.run("lake", *options[:-1], "parquet")
    assert (code, f"--format: {tmp_path / 'table'} was begun with {kind}" in said) == (1, True), said
    assert found["now"] == [*whole, 5]
    assert found["first"][0] == found["first"][1] < 700
    assert found["first"][3] == 1, "one batch"
    assert {"OPTIMIZE", "replace"} & set(found["made"]), "compacted"
    letters = [path for path in (tmp_path / "table-dead-letters").rglob("*.parquet") if path.name[0] not in "._"]
    assert letters


@pytest.mark.parametrize("kind", [kind for test, kind in _DUE if test == "other jobs"])
def test_other_jobs_write_each_row_once(
    kind: str, jobs_of: Callable[[str], WarmJobs], bootstrap: str, tmp_path: Path
) -> None:
    (topic,) = make_topics(bootstrap, "visits", partitions=2)
    visits = [{"id": number, "place": "ab"[number % 2], "at": 60_000 * number} for number in range(100)]
    produce_values(bootstrap, topic, [json.dumps(visit).encode() for visit in visits])
    (tmp_path / "visits.ddl").write_text("id INT, place STRING, at BIGINT")
    (tmp_path / "names.csv").write_text("place,name\na,Anna\nb,Bert\n")
    (tmp_path / "names.ddl").write_text("place STRING, name STRING")
    (tmp_path / "rules.yaml").write_text("rules: [{name: small, expect: id < 90}]")
    schema, names = str(tmp_path / "visits.ddl"), str(tmp_path / "names.ddl")
    own_options = {
        "aggregate": [
            *("--topics", topic, "--schema", schema, "--timestamp-field", "at"),
            *("--window", "1h", "--group-by", "place"),
            *("--agg", "count,sum:id", "--watermark", "1d", "--mode", "update"),
            *("--dead-letters", str(tmp_path / "unparsed")),
        ],
        "join": [
            *("--left", topic, "--left-schema", schema, "--static", str(tmp_path / "names.csv"), "--on", "place"),
            *("--right-schema", names),
        ],
        "quality": [
            *("--topics", topic, "--schema", schema, "--rules", str(tmp_path / "rules.yaml")),
            *("--dead-letters", str(tmp_path / "bad")),
        ],
    }
    jobs = jobs_of(kind)
    for name, options in own_options.items():
        checkpoint = tmp_path / f"{name}-checkpoint"
        options += ["--bootstrap-servers", bootstrap, "--checkpoint", str(checkpoint), "--format", kind]
        options += ["--output", str(tmp_path / name)]
        code, said = jobs.run(name, *options)
        assert code == 0, said
        done = max((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
        # As if the job had died after all writes, before Spark's commit.
        for path in (done, done.with_name(f".{done.name}.crc")):
            path.unlink()
        code, said = jobs.run(name, *options)
        assert code == 0, said
    columns = "place,count,sum_id;id,name;id"
    hours, joined, good = read(jobs, kind, "rows", columns, *(str(tmp_path / name) for name in own_options))
    ids = [range(60, 100, 2), range(0, 60, 2), range(61, 100, 2), range(1, 60, 2)]
    assert hours == [[place, len(each), sum(each)] for place, each in zip("aabb", ids, strict=True)]
    assert joined == [[number, "Bert" if number % 2 else "Anna"] for number in range(100)]
    assert good == [[number] for number in range(90)]
