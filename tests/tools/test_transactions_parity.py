"""kafka-transactions: Kafka's tool and ours print the same about the same transactions, and both abort a hanging
one.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from protocol.topic_partition import TopicPartition
from tests.kit.transactions.requests import produce_in_transaction
from tests.kit.wire_client import WireClient
from tests.tools.tool_pair import Answer, Runner, lines_of

pytestmark = [pytest.mark.java, pytest.mark.timeout(180)]

HANGING = 4
"""The number of partitions with a transaction that no coordinator knows."""
HANGING_PRODUCER, HANGING_EPOCH = 7_000, 3


@pytest.fixture(scope="module")
def transactions(address: str) -> Iterator[str]:
    """The address of a broker with an open transaction, a committed, an aborted and several hanging ones."""
    admin = AdminClient({"bootstrap.servers": address})
    for made in admin.create_topics([NewTopic("tx-open", 3), NewTopic("tx-hanging", HANGING)]).values():
        made.result()
    producers = {
        name: Producer({"bootstrap.servers": address, "transactional.id": name})
        for name in ("tx-open-id", "tx-committed-id", "tx-aborted-id", "tx-empty-id")
    }
    for name, producer in producers.items():
        producer.init_transactions()
        if name != "tx-empty-id":
            producer.begin_transaction()
            for partition in (0, 2):
                producer.produce("tx-open", b"v", partition=partition)
            assert producer.flush(60) == 0
    producers["tx-committed-id"].commit_transaction()
    producers["tx-aborted-id"].abort_transaction()
    host, _, port = address.rpartition(":")
    with WireClient(host, int(port)) as wire:
        for partition in range(HANGING):
            at = TopicPartition("tx-hanging", partition)
            request = produce_in_transaction("nobody", HANGING_PRODUCER, HANGING_EPOCH, 0, [b"a", b"b"], at)
            assert wire.ask(request, 10).responses[0].partition_responses[0].error_code == 0
    yield address
    producers["tx-open-id"].abort_transaction()


def asked(address: str, runners: tuple[Runner, ...], command: str) -> list[Answer]:
    arguments = ["--bootstrap-server", address, *shlex.split(command)]
    with ThreadPoolExecutor(2) as sides:
        return list(sides.map(lambda runner: runner.run("transactions", arguments), runners))


def table(answer: Answer) -> list[list[str]]:
    """The cells with their padding, rows sorted after the header. Durations are masked."""
    head, *rows = [line.split("\t") for line in answer.stdout.splitlines()]
    for row in rows:
        for column, name in enumerate(head):
            if name.strip() == "TransactionDurationMs" and row[column].strip() != "None":
                assert int(row[column]) >= 0
                row[column] = " " * len(row[column])
            elif name.strip() == "TopicPartitions":
                row[column] = ",".join(sorted(row[column].split(",")))
    return [head, *sorted(rows)]


@pytest.mark.parametrize(
    ("command", "rows"),
    [
        ("list", 4),
        ("list --duration-filter 0", 4),
        ("list --duration-filter 3600000", 1),  # an id without a transaction has one that began in 1970
        ("list --duration-filter -5", 4),
        ("describe --transactional-id tx-open-id", 1),
        ("describe --transactional-id tx-committed-id", 1),
        ("describe --transactional-id tx-empty-id", 1),
        ("describe-producers --topic tx-open --partition 0", 3),
        ("describe-producers --topic tx-open --partition 2 --broker-id 0", 3),
        ("describe-producers --topic tx-open --partition 1", 0),
        ("describe-producers --topic tx-hanging --partition 0", 1),
        ("find-hanging --topic tx-hanging", HANGING),
        ("find-hanging --topic tx-hanging --partition 1", 1),
        ("find-hanging --topic tx-open", 0),
        ("find-hanging --broker-id 0", HANGING),
        ("find-hanging --broker-id 0 --topic tx-hanging --max-transaction-timeout 0", HANGING),
        ("find-hanging --topic tx-hanging --max-transaction-timeout 2000000000", 0),
        ("find-hanging --topic tx-open --max-transaction-timeout -1", 0),
    ],
)
def test_both_show_the_same(command: str, rows: int, transactions: str, kafkas: Runner, ours: Runner) -> None:
    theirs, mine = asked(transactions, (kafkas, ours), command)
    assert (theirs.code, mine.code) == (0, 0), (theirs.stderr, mine.stderr)
    assert table(mine) == table(theirs)
    assert len([row for row in table(mine)[1:] if not row[0].startswith("perf-")]) == rows, "perf-: of another test"


@pytest.mark.parametrize(
    "command",
    [
        "describe --transactional-id unknown",
        "find-hanging",
        "find-hanging --partition 0",
        "find-hanging --topic missing",
        "abort --topic tx-hanging --partition 0",
        "abort --topic tx-hanging --partition 0 --start-offset 99",
        "abort --topic tx-hanging --partition 0 --producer-id 7000",
        "abort --topic tx-hanging --partition 0 --producer-id 7000 --producer-epoch 3",
        "abort --topic tx-hanging --partition 0 --producer-id 7000 --producer-epoch 1 --coordinator-epoch 0",
    ],
)
def test_both_refuse_in_the_same_words(command: str, transactions: str, kafkas: Runner, ours: Runner) -> None:
    theirs, mine = asked(transactions, (kafkas, ours), command)
    assert (mine.code, mine.stdout) == (theirs.code, theirs.stdout) == (1, "")
    assert mine.stderr.strip() in theirs.stderr


@pytest.mark.parametrize("arguments", ["", "list", "--bootstrap-server x:1", "--bootstrap-server x:1 foo"])
def test_both_refuse_mistakes(arguments: str, kafkas: Runner, ours: Runner) -> None:
    theirs, mine = (runner.run("transactions", arguments.split()) for runner in (kafkas, ours))
    assert (mine.code, mine.stdout) == (theirs.code, theirs.stdout) == (1, "")
    assert "kafka-transactions.sh: error: " in theirs.stderr
    assert "kafka-transactions.sh: error: " in mine.stderr


def test_a_missing_file_is_told(ours: Runner) -> None:
    answer = ours.run("transactions", ["--bootstrap-server", "x:1", "--command-config", "no.properties", "list"])
    assert (answer.code, answer.stdout) == (1, "")
    assert answer.stderr.startswith("Failed to load admin client properties: no.properties")


@pytest.mark.parametrize("level", ["read_committed", "read_uncommitted"])
def test_console_consumers_show_what_was_committed(address: str, level: str, kafkas: Runner, ours: Runner) -> None:
    topic = f"tx-{level}"
    admin = AdminClient({"bootstrap.servers": address})
    admin.create_topics([NewTopic(topic, 1)])[topic].result()
    producer = Producer({"bootstrap.servers": address, "transactional.id": f"perf-{level}"})
    producer.init_transactions()
    for number in range(6):
        producer.begin_transaction()
        producer.produce(topic, b"%d" % number)
        assert producer.flush(60) == 0
        if number % 3 == 1:
            producer.abort_transaction()
        else:
            producer.commit_transaction()
    expected = ["0", "2", "3", "5"] if level == "read_committed" else ["0", "1", "2", "3", "4", "5"]
    arguments = f"--bootstrap-server {address} --topic {topic} --isolation-level {level} --from-beginning"
    for runner in (kafkas, ours):
        few = runner.run("console_consumer", [*arguments.split(), "--max-messages", str(len(expected))])
        assert (few.code, lines_of(few)) == (0, expected), few.stderr
        every = runner.run("console_consumer", [*arguments.split(), "--timeout-ms", "5000"])
        assert lines_of(every) == expected, every.stderr


def test_both_abort_what_hangs(transactions: str, kafkas: Runner, ours: Runner) -> None:
    """By the start offset, or by the fields that older brokers need; a coordinator epoch of -1 means unknown."""
    by_epoch = f"--producer-id {HANGING_PRODUCER} --producer-epoch {HANGING_EPOCH} --coordinator-epoch -1"
    for partition, (runner, how) in enumerate(
        (runner, how) for how in ("--start-offset 0", by_epoch) for runner in (kafkas, ours)
    ):
        (answer,) = asked(transactions, (runner,), f"abort --topic tx-hanging --partition {partition} {how}")
        assert (answer.code, lines_of(answer)) == (0, []), answer.stderr
        theirs, mine = asked(
            transactions, (kafkas, ours), f"describe-producers --topic tx-hanging --partition {partition}"
        )
        assert table(theirs) == table(mine)
        assert table(mine)[1][-2].strip() == "None"
    for answer in asked(transactions, (kafkas, ours), "find-hanging --topic tx-hanging"):
        assert len(table(answer)) == 1
