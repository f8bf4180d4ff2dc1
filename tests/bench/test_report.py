"""The table of bench/run: medians, ratios and targets; and (slow) the whole benchmark, with our broker on both
sides.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bench.__main__ import SCENARIOS, select, unworsened
from bench.brokers import side
from bench.report import Row, Samples, goal, heading, line, noise_of_the_machine, number, rows, worse
from bench.scenario import Context, Sample, Scenario
from tests.kit.due import ONE_IN, due
from tests.kit.jars import require

ROOT = Path(__file__).resolve().parents[2]


def scenario(**fields: object) -> Scenario:
    def measure(_context: Context, _broker: object, _topic: str) -> Sample:
        raise AssertionError("not run here")

    return Scenario("x", "the title", "records/s", measure, **fields)  # type: ignore[arg-type]


def test_medians_and_cpu_for_each_gigabyte() -> None:
    first = [Sample(value, broker_cpu_s=4, client_cpu_s=2, gigabytes=2) for value in (1, 100, 10)]
    second = [Sample(value, broker_cpu_s=1, client_cpu_s=2, gigabytes=2) for value in (30, 20, 1)]
    figure, broker, client = rows(scenario(target=1.8, cpu_target=0.25), {"first": first, "second": second})
    assert (figure.figures, figure.ratio, figure.reached) == ((10, 20), 2.0, True)
    assert (broker.unit, broker.figures, broker.ratio, broker.reached) == ("CPU s/GB", (2, 0.5), 0.25, True)
    assert (client.figures, client.reached) == ((1, 1), None)


def test_a_detail_that_one_side_tells() -> None:
    samples = {"first": [Sample(4)], "second": [Sample(2, details={"ms_to_read": 700.0})]}
    _, detail = rows(scenario(), samples)
    assert line(detail).split() == ["ms", "to", "read", "-", "700", "-"]


def test_a_detail_with_a_target_of_its_own() -> None:
    samples = {"first": [Sample(4, details={"p50_ms": 2.0})], "second": [Sample(2, details={"p50_ms": 3.0})]}
    figure, detail = rows(scenario(target=1.0, higher_is_better=False, detail_targets={"p50_ms": 1.0}), samples)
    assert (figure.reached, detail.reached) == (True, False)
    assert unworsened(scenario(detail_targets={"p50_ms": 1.0})).detail_targets == {"p50_ms": 1.1}


def test_a_detail_with_a_limit_of_its_own() -> None:
    samples = {"first": [Sample(4, details={"wait_ms": 90.0})], "second": [Sample(2, details={"wait_ms": 60.0})]}
    limited = scenario(detail_limits={"wait_ms": 50})
    figure, detail = rows(limited, samples)
    assert (figure.reached, detail.reached, goal(detail)) == (None, False, "<= 50.0  MISSED")
    assert unworsened(limited).detail_limits == {}


def compared(*, value: float, cpu_s: float, **details: float) -> list[Row]:
    """The rows comparing a commit with one that handles 100 records a second and spends 1 s, p99 1 ms, 30 MB."""
    known = {"p99_ms": 1.0, "MB_more": 30.0}
    samples: Samples = {
        "first": [Sample(100, broker_cpu_s=1, details=known)],
        "second": [Sample(value, broker_cpu_s=cpu_s, details=known | details)],
    }
    return rows(unworsened(scenario(detail_targets=dict.fromkeys(known, 1.0))), samples)


@pytest.mark.parametrize(
    ("value", "cpu_s", "details", "said"),
    [
        (97, 1.03, {}, "none"),
        (90, 1.03, {}, "none"),
        (90, 1.04, {}, "x 0.90, x (broker) 1.04"),
        (100, 1.04, {}, "x (broker) 1.04"),
        (100, 1.00, {"p99_ms": 2.0}, "none"),
        (100, 1.04, {"p99_ms": 2.0}, "x (broker) 1.04, x (p99 ms) 2.00"),
        (90, 1.00, {"MB_more": 60.0}, "x (MB more) 2.00"),
    ],
)
def test_what_is_slower_is_worse_only_where_the_broker_spends_more(
    value: float, cpu_s: float, details: dict[str, float], said: str
) -> None:
    lines = compared(value=value, cpu_s=cpu_s, **details)
    assert worse({"x": lines}) == f"Worse: {said}"
    assert (
        goal(lines[0]) == f">= 0.97  {'ok' if value >= 97 else 'MISSED' if 'x 0.90' in said else 'noise: no more CPU'}"
    )


def test_what_is_slower_is_worse_where_nobody_knows_what_the_broker_spent() -> None:
    (figure,) = rows(unworsened(scenario()), {"first": [Sample(100)], "second": [Sample(90)]})
    assert figure.reached is False


def test_a_detail_that_tells_what_the_broker_spent_decides_as_well() -> None:
    def figure(spent: float) -> Row:
        samples: Samples = {
            "first": [Sample(100, details={"broker_CPU_us_a_request": 10.0})],
            "second": [Sample(90, details={"broker_CPU_us_a_request": spent})],
        }
        return rows(unworsened(scenario()), samples)[0]

    assert (figure(10.2).reached, figure(10.4).reached) == (True, False)


def test_noise_is_the_ratio_of_two_measurements_of_the_same_code() -> None:
    samples: Samples = {
        "first": [Sample(100, broker_cpu_s=1)],
        "second": [Sample(200, broker_cpu_s=2)],
        "second again": [Sample(190, broker_cpu_s=2.2)],
    }
    lines = rows(scenario(), samples)
    assert [row.noise for row in lines] == [0.95, 1.1]
    assert line(lines[0]).split()[-2:] == ["2.00", "0.95"]
    assert noise_of_the_machine(lines, of_ratios=False).endswith("figures 0.95 to 0.95, the broker's CPU 1.10 to 1.10")
    assert noise_of_the_machine(lines, of_ratios=True).endswith("figures 2.00 to 2.00, the broker's CPU 2.00 to 2.00")


def test_a_limit_holds_where_the_other_side_has_no_figure() -> None:
    assert goal(Row("t", "MB", (0, 6), limit=5)) == "<= 5.00 MB  MISSED"


def test_what_a_warm_broker_does_is_shown_without_targets() -> None:
    def sample(value: float) -> Sample:
        return Sample(value, broker_cpu_s=4, gigabytes=2, warm=Sample(value * 3, broker_cpu_s=2, gigabytes=2))

    both = {"first": [sample(1)], "second": [sample(2)]}
    figure, broker, warm, warm_broker = rows(scenario(target=2, cpu_target=0.5, also_warm=True), both)
    assert (figure.figures, figure.reached, broker.reached) == ((1, 2), True, False)
    assert (warm.title, warm.figures, warm.reached) == ("  warm", (3, 6), None)
    assert (warm_broker.title, warm_broker.figures, warm_broker.reached) == ("  warm broker", (1, 1), None)


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (Row("t", "x/s", (10, 18), target=1.8), ">= 1.80  ok"),
        (Row("t", "x/s", (10, 17.9), target=1.8), ">= 1.80  MISSED"),
        (Row("t", "ms", (1000, 150), target=0.15, at_least=False, limit=400), "<= 0.15, <= 400 ms  ok"),
        (Row("t", "ms", (10_000, 500), target=0.15, at_least=False, limit=400), "<= 0.15, <= 400 ms  MISSED"),
        (Row("t", "ms", (10, 90), target=1, at_least=False, limit=100, either=True), "<= 1.00 or <= 100 ms  ok"),
        (Row("t", "ms", (900, 800), target=1, at_least=False, limit=100, either=True), "<= 1.00 or <= 100 ms  ok"),
        (Row("t", "ms", (99, 101), target=1, at_least=False, limit=100, either=True), "<= 1.00 or <= 100 ms  MISSED"),
        (Row("t", "ms", (10, 20)), ""),
        (Row("t", "s", (0, 1), target=0.5, at_least=False), ""),
    ],
)
def test_targets(row: Row, expected: str) -> None:
    assert goal(row) == expected


@pytest.mark.parametrize(("value", "text"), [(1234567.8, "1,234,568"), (12.34, "12.3"), (0.456, "0.46")])
def test_numbers(value: float, text: str) -> None:
    assert number(value) == text


def test_table_lines_up() -> None:
    first, second = line(Row("a", "s", (1, 2))), line(Row("b", "s", (0, 2)))
    assert (first.split()[-1], second.split()[-1]) == ("2.00", "-")
    assert len(first) == len(second) == heading(("one", "two")).index("  target")


def test_names_select_scenarios() -> None:
    assert select(None) == SCENARIOS
    assert [chosen.name for chosen in select("start,produce-100")] == ["produce-100", "start"]
    assert [chosen.name for chosen in select("start*,fsync-1")] == ["fsync-1", "start", "start-1000", "start-10000"]
    with pytest.raises(ValueError, match="nonsense"):
        select("start,nonsense")


def test_two_checkouts_are_held_to_what_was() -> None:
    faster, latency, memory = (unworsened(each) for each in select("produce-100,latency,memory"))
    assert (faster.target, faster.cpu_target, faster.limit) == (0.97, 1.03, None)
    assert (latency.target, memory.target, memory.limit) == (1.1, 1.03, None)
    assert side(str(ROOT)).name == ROOT.name
    assert (side("kafka").is_kafka, side("odradek").is_kafka) == (True, False)
    with pytest.raises(ValueError, match="nor a checkout"):
        side("/nowhere")


SERVED = "produce-100,consume-100,unbatched,latency,start,partitions,wait-fetch-unknown,wait-half-frames"
TRANSACTIONS = "transactions-1000,commit-latency,load-transactions"
GROUPS = "offset-commits,group-restart,load-offsets"
BY_TLS = "tls-produce,tls-consume,tls-handshakes,wait-handshakes"
GUARDED = "acls-produce,quotas-unbatched"
HEADERS = ("/usr/include/librdkafka/rdkafka.h", "/usr/include/openssl/ssl.h")
BY_SPARK = pytest.param("spark-read-100,spark-write-1000,spark-stream", marks=pytest.mark.spark)
WHOLE = (SERVED, TRANSACTIONS, GROUPS, BY_TLS, GUARDED, BY_SPARK)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("names", due(WHOLE, len(WHOLE) if ONE_IN > 1 else 1))
def test_the_whole_of_it_with_our_broker_on_both_sides(names: str, tmp_path: Path) -> None:
    if shutil.which("cc") is None or not all(Path(header).exists() for header in HEADERS):
        if os.environ.get("CI") == "true":
            pytest.fail("a C compiler, librdkafka-dev and libssl-dev are needed")
        pytest.skip("a C compiler, librdkafka-dev and libssl-dev are needed")
    if names.startswith("spark-"):
        pytest.importorskip("pyspark")
        require("java")
    out = tmp_path / "bench.json"
    done = subprocess.run(
        [sys.executable, "-P", "-m", "bench", "--sides", f"odradek,{ROOT}", "--scale", "0.01", "--rounds", "1",
         "--only", names, "--json", str(out)],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=560, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(out.read_text())
    assert result["sides"] == ["Odradek", ROOT.name]
    assert set(result["samples"]) == set(names.split(","))
    assert all(figure > 0 for row in result["rows"] if not row["title"].startswith(" ") for figure in row["figures"])
