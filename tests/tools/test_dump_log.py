"""kafka-dump-log compared with Kafka's own tool: the same files, the same output and exit codes.

`kafka_logs` was written by Apache Kafka 3.9.1, `kafka_logs/said.json` is its tool's output for it, so that much is
compared without Java. Beyond that, both get hand-made files (`odd_segments`) and malformed command lines.
"""

from __future__ import annotations

import json
import random
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from protocol.records.batch import BatchOptions, CompressionType, Record, TimestampType, build_batch
from protocol.topic_partition import TopicPartition
from storage.io.os_file_system import OsFileSystem
from storage.log_config import LogConfig
from tests.kit.environment import uuid_of
from tests.kit.jars import java, kafka_classpath
from tests.storage.support import close_cleanly, open_manager
from tests.tools.odd_segments import ZERO, T, write_all, write_damaged
from tools.dump_log import main

KAFKA_LOGS = Path(__file__).with_name("kafka_logs")
SAID = KAFKA_LOGS / "said.json"

Answer = dict[str, Any]


def ask_kafka(cases: list[list[str]], directory: Path) -> list[Answer]:
    """The answers of Kafka's tool to each command line, run in `directory`."""
    program = Path(__file__).with_name("java") / "DumpLogs.java"
    command = java("-Xmx512m", "-XX:+UseSerialGC", "-cp", kafka_classpath(), str(program))
    lines = "".join(json.dumps(case) + "\n" for case in cases)
    done = subprocess.run(command, input=lines.encode(), capture_output=True, cwd=directory, timeout=110, check=False)
    assert done.returncode == 0, done.stderr[-2000:].decode()
    return [json.loads(line) for line in done.stdout.decode().split("\n") if line]


@pytest.fixture
def ask_us(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    def ask(case: list[str], directory: Path) -> Answer:
        monkeypatch.chdir(directory)
        code = main(case)
        out, err = capsys.readouterr()
        return {"out": out, "err": err, "code": code}

    return ask


def golden_cases() -> list[list[str]]:
    cases = []
    for path in sorted(KAFKA_LOGS.glob("*/*")):
        name = f"{path.parent.name}/{path.name}"
        cases.append(["--files", name])
        if "__consumer_offsets" in name:
            cases.append(["--offsets-decoder", "--files", name])
        elif "__transaction_state" in name:
            cases.append(["--transaction-log-decoder", "--files", name])
        elif path.suffix == ".log":
            cases += [["--print-data-log", "--files", name], ["--deep-iteration", "--files", name]]
        elif path.suffix.endswith("index"):
            cases += [["--index-sanity-check", "--files", name], ["--verify-index-only", "--files", name]]
    return cases


def wherever(answer: Answer) -> Answer:
    """Without the path of the checkout, which both tools print if offsets are not consecutive."""
    return {**answer, "err": answer["err"].replace(f"{KAFKA_LOGS}/", "kafka_logs/")}


def test_files_that_kafka_wrote(ask_us: Any) -> None:
    said = json.loads(SAID.read_text(encoding="utf-8"))
    assert [case for case, _ in said] == golden_cases()
    for case, kafka in said:
        assert wherever(ask_us(case, KAFKA_LOGS)) == kafka


@pytest.mark.java
def test_kafka_still_says_so() -> None:
    cases = golden_cases()
    said = json.loads(SAID.read_text(encoding="utf-8"))
    answers = map(wherever, ask_kafka(cases, KAFKA_LOGS))
    assert [list(pair) for pair in zip(cases, answers, strict=True)] == said


# -- what differs ----------------------------------------------------------------------------------------------------

DIFFERENT = {
    "--files aborted/00000000000000000004.txnindex": "Kafka names the class of the exception, we the file",
    "--print-data-log --value-decoder-class org.apache.kafka.tools.api.DefaultDecoder --files short_numbers/"
    f"{ZERO}.log": "Kafka shows the address of a byte array, we the bytes",
    "--cluster-metadata-decoder --files short_numbers/00000000000000000000.log": "not supported here",
    "--remote-log-metadata-decoder --files short_numbers/00000000000000000000.log": "not supported here",
    "--version": "the tool's own version",
    "--help": "our own words",
    "": "our own words",
    "--print-data-log": "our own words in the list of options",
}
"""Command lines whose standard output or exit code may differ, and why."""


def normal(answer: Answer) -> Answer:
    """Without the documented differences: the text of errors, and the order of a hash table."""
    out = re.sub(r"partitions=\[([^\]]*)\]", lambda found: f"partitions={sorted(found[1].split(','))}", answer["out"])
    err = answer["err"]
    if answer["code"] != 0 or "napshot" in err:
        err = bool(err)
    return {"out": out, "err": err, "code": answer["code"]}


def file_cases(root: Path) -> Iterator[list[str]]:
    for path in sorted(root.rglob("*")):
        if not path.is_file():
            continue
        name = str(path.relative_to(root))
        yield ["--files", name]
        if name.startswith("offsets"):
            yield ["--offsets-decoder", "--files", name]
            yield ["--offsets-decoder", "--skip-record-metadata", "--files", name]
        elif name.startswith("transactions"):
            yield ["--transaction-log-decoder", "--files", name]
        elif path.suffix == ".log":
            yield ["--print-data-log", "--files", name]
            yield ["--skip-record-metadata", "--deep-iteration", "--files", name]
            yield ["--skip-record-metadata", "--print-data-log", "--files", name]
        elif path.suffix.endswith("index"):
            yield ["--index-sanity-check", "--files", name]
            yield ["--verify-index-only", "--files", name]


def command_lines() -> list[list[str]]:
    small, torn, good = f"short_numbers/{ZERO}.log", f"torn/{ZERO}.log", f"ix_good/{ZERO}"
    numbers = f"numbers/{ZERO}.log"
    gaps = f"gaps/{ZERO}.log"
    new, old = "org.apache.kafka.tools.api.", "kafka.serializer."
    return [
        ["--print-data-log", "--key-decoder-class", f"{new}IntegerDecoder", "--files", numbers],
        ["--value-decoder-class", f"{new}LongDecoder", "--files", numbers],
        ["--key-decoder-class", f"{old}IntegerDecoder", "--value-decoder-class", f"{old}LongDecoder", "--files",
         f"{numbers},{numbers}"],
        *([f"--{side}-decoder-class", f"{package}{kind}Decoder", "--files", file]
          for side, file in (("key", numbers), ("value", numbers), ("value", f"no_keys/{ZERO}.log"))
          for package in (new, old)
          for kind in ("String", "Integer", "Long")),
        ["--share-group-state-decoder", "--files", small],
        ["--key-decoder-class", f"{new}IntegerDecoder", "--files", small],
        ["--value-decoder-class", f"{new}LongDecoder", "--files", small],
        ["--print-data-log", "--value-decoder-class", f"{new}DefaultDecoder", "--files", small],
        ["--value-decoder-class", "no.such.Decoder", "--files", small],
        ["--value-decoder-class", "no.such.Decoder", "--files", f"{good}.index"],
        ["--value-decoder-class=", "--files", small],
        ["--value-decoder-class", "--print-data-log", "--files", small],
        *(["--max-bytes", size, "--files", torn]
          for size in ("83", "84", "10", "0", "-1", "200", "99999", "2147483647", "2147483648", "abc", "+5", " 5")),
        *(["--max-message-size", size, "--files", f"{good}.index"] for size in ("0", "20", "78", "79", "x")),
        ["--max-message-size", "x", "--files", small],
        ["--max-bytes", "83", "--max-bytes", "10", "--files", torn],
        ["--files", small, "--max-bytes"],
        ["--files=" + small],
        ["-files", small],
        ["--files", small, "extra", "-"],
        ["--files", small, "--files", small],
        ["--files", f"{small},{small}"],
        ["--files", f"{small},foo.txt,{torn}"],
        ["--files", f"{small},,"],
        ["--files", f"{small}, {small}"],
        ["--files", ""],
        ["--files", "--print-data-log"],
        ["--files"],
        ["--file", small],
        ["--print", "--files", small],
        ["--files", small, "-x"],
        ["--print-data-log=true", "--files", small],
        ["--deep-iteration", "--files", f"no_keys//{ZERO}.log"],
        ["--files", f"./no_keys/../no_keys/{ZERO}.log"],
        ["--files", "no_keys"],
        *(["--files", f"nowhere/{ZERO}.{suffix}"] for suffix in ("log", "index", "timeindex", "snapshot", "txnindex")),
        ["--deep-iteration", "--files", f"{gaps},{gaps}"],
        ["--deep-iteration", "--files", f"{gaps},ix_first/{ZERO}.index,ix_first/{ZERO}.timeindex"],
        ["--files", f"ix_times/{ZERO}.timeindex,ix_order/{ZERO}.timeindex"],
        ["--offsets-decoder", "--transaction-log-decoder", "--files", small],
        ["--verify-index-only", "--index-sanity-check", "--files", f"{good}.index"],
        ["--verify-index-only", "--print-data-log", "--files", small],
        ["--cluster-metadata-decoder", "--files", small],
        ["--remote-log-metadata-decoder", "--files", small],
        ["--offsets-decoder", "--files", f"no_keys/{ZERO}.log"],
        ["--transaction-log-decoder", "--files", f"offsets/{ZERO}.log"],
        [],
        ["--help"],
        ["--version"],
        ["--print-data-log"],
    ]  # fmt: skip


@pytest.mark.java
def test_odd_files_and_odd_command_lines(tmp_path: Path, ask_us: Any) -> None:
    write_all(tmp_path)
    cases = [*file_cases(tmp_path), *command_lines()]
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    ours = [ask_us(case, tmp_path) for case in cases]
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before, "we changed files"
    differences = []
    for case, mine, kafka in zip(cases, ours, ask_kafka(cases, tmp_path), strict=True):
        if " ".join(case) in DIFFERENT:
            continue
        if normal(mine) != normal(kafka):
            differences.append(f"{' '.join(case)}\n  Kafka: {normal(kafka)}\n  ours:  {normal(mine)}")
    assert not differences, f"{len(differences)} of {len(cases)}:\n" + "\n".join(differences)[:6000]


@pytest.mark.java
def test_damaged_files(tmp_path: Path, ask_us: Any) -> None:
    cases = []
    for path in write_damaged(tmp_path):
        name = str(path.relative_to(tmp_path))
        options = {".log": ["--print-data-log", "--deep-iteration"], ".index": ["--index-sanity-check"]}
        cases += [["--files", name], *([option, "--files", name] for option in options.get(path.suffix, []))]
    ours = [ask_us(case, tmp_path) for case in cases]
    differences = []
    for case, mine, kafka in zip(cases, ours, ask_kafka(cases, tmp_path), strict=True):
        if normal(mine) != normal(kafka):
            differences.append(f"{' '.join(case)}\n  Kafka: {kafka}\n  ours:  {mine}")
    assert not differences, f"{len(differences)} of {len(cases)}:\n" + "\n".join(differences)[:6000]


def write_our_own(root: Path) -> None:
    """Partitions written by this broker: several segments, every codec, producers, epochs, both timestamp types."""
    config = LogConfig(segment_bytes=4000, index_interval_bytes=200)
    manager, _ = open_manager(OsFileSystem(), config, str(root), now_ms=T)
    for name, kind in (("created", TimestampType.CREATE_TIME), ("appended", TimestampType.LOG_APPEND_TIME)):
        config = manager.default_config.replace(message_timestamp_type=kind)
        log = manager.get_or_create(TopicPartition(name, 0), uuid_of(7), config, T)
        for at in range(150):
            rows = [Record(0, T + at * 10 + one, b"k%d" % one, b"v" * at) for one in range(at % 4 + 1)]
            options: BatchOptions = {"compression": CompressionType(at % 5)}
            if at % 3 == 0:
                options |= {"producer_id": 70 + at, "producer_epoch": 0, "base_sequence": 0}
            data = memoryview(bytearray(build_batch(rows, **options)))
            log.append_as_leader(data, leader_epoch=at // 100, now_ms=T + 5000 + at)
    close_cleanly(manager)


@pytest.mark.java
def test_files_that_we_wrote(tmp_path: Path, ask_us: Any) -> None:
    write_our_own(tmp_path)
    cases = [case for case in file_cases(tmp_path) if "." in Path(case[-1]).name and "-0/" in case[-1]]
    assert sum(case[-1].endswith(".log") for case in cases) > 20
    assert sum(case[-1].endswith(".snapshot") for case in cases) > 2
    for case, kafka in zip(cases, ask_kafka(cases, tmp_path), strict=True):
        assert ask_us(case, tmp_path) == kafka
        if not case[-1].endswith("partition.metadata"):
            assert (kafka["code"], kafka["err"]) == (0, ""), case
            assert "isvalid: false" not in kafka["out"]
            assert "invalid bytes" not in kafka["out"]


# -- by ourselves ----------------------------------------------------------------------------------------------------


def test_records_that_cannot_be_read_are_passed_over(tmp_path: Path, ask_us: Any) -> None:
    """Kafka prints the message of a Java exception here, and reads versions that it does not know."""
    write_all(tmp_path)
    answer = ask_us(["--offsets-decoder", "--files", f"offsets/{ZERO}.log"], tmp_path)
    assert answer["code"] == 0
    assert "key: Error at offset 21, skipping. Could not read version from key's buffer.\n" in answer["out"]


def test_older_formats_are_refused_by_name(tmp_path: Path, ask_us: Any) -> None:
    write_all(tmp_path)
    path = tmp_path / "old" / f"{ZERO}.log"
    path.parent.mkdir()
    data = bytearray((tmp_path / "numbers" / f"{ZERO}.log").read_bytes())
    data[16] = 1
    path.write_bytes(data)
    answer = ask_us(["--files", str(path)], tmp_path)
    assert answer["code"] == 1
    assert answer["err"] == (
        f"{path} holds messages of format v1 at position 0; only format v2 (Kafka 0.11 and later) can be shown\n"
    )


def test_damaged_files_end_in_a_line_not_in_a_crash(tmp_path: Path, ask_us: Any) -> None:
    write_all(tmp_path)
    rng = random.Random(5)
    cases = list(file_cases(tmp_path))
    for _ in range(400):
        case = rng.choice(cases)
        path = tmp_path / case[-1]
        good = path.read_bytes()
        damaged = bytearray(good)
        for _ in range(rng.randrange(1, 5)):
            if damaged:
                damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        path.write_bytes(damaged[: rng.randrange(len(damaged) + 1)] if rng.random() < 0.2 else damaged)
        answer = ask_us(case, tmp_path)
        assert answer["code"] == 0 or answer["err"].count("\n") == 1, (case, answer["err"])
        path.write_bytes(good)


@pytest.mark.parametrize(
    "option", ["--cluster-metadata-decoder", "--remote-log-metadata-decoder", "--share-group-state-decoder"]
)
def test_decoders_that_are_not_here(tmp_path: Path, ask_us: Any, option: str) -> None:
    answer = ask_us([option, "--files", f"{ZERO}.log"], tmp_path)
    assert answer["code"] == 1
    assert option.lstrip("-") in answer["err"]
    assert "Traceback" not in answer["err"]
    assert answer["out"] == ""
