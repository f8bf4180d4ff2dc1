"""The image `broker`, started by scripts written for the images of Apache and Confluent: the scripts set variables and
call files of the image, which are below a directory here.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer

from tests.kit.broker_process import PATIENCE_S, ROOT, free_port
from tests.kit.waiting import eventually
from tests.packaging.compositions import DOCKERFILE, written_file

CLUSTER_ID = "4L6g3nShT-eMCtK--X86sw"
COMMON = {
    "KAFKA_BROKER_ID": "1",
    "KAFKA_INTER_BROKER_LISTENER_NAME": "BROKER",
    "KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR": "1",
    "KAFKA_OFFSETS_TOPIC_NUM_PARTITIONS": "1",
    "KAFKA_TRANSACTION_STATE_LOG_REPLICATION_FACTOR": "1",
    "KAFKA_TRANSACTION_STATE_LOG_MIN_ISR": "1",
    "KAFKA_LOG_FLUSH_INTERVAL_MESSAGES": str(2**63 - 1),
    "KAFKA_GROUP_INITIAL_REBALANCE_DELAY_MS": "0",
    "KAFKA_LISTENERS": "PLAINTEXT://0.0.0.0:CLIENTS,BROKER://0.0.0.0:BROKERS",
    "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": "BROKER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
}
KRAFT = COMMON | {
    "KAFKA_NODE_ID": "1",
    "KAFKA_PROCESS_ROLES": "broker,controller",
    "KAFKA_CONTROLLER_LISTENER_NAMES": "CONTROLLER",
    "KAFKA_CONTROLLER_QUORUM_VOTERS": "1@localhost:9094",
    "KAFKA_LISTENERS": COMMON["KAFKA_LISTENERS"] + ",CONTROLLER://0.0.0.0:9094",
    "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": "BROKER:PLAINTEXT,PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
}
ADVERTISE = "export KAFKA_ADVERTISED_LISTENERS=PLAINTEXT://127.0.0.1:CLIENTS,BROKER://127.0.0.1:BROKERS\n"
APPEND = (
    "echo 'kafka-storage format --ignore-formatted -t {} -c /etc/kafka/kafka.properties' "
    ">>/etc/confluent/docker/configure\n"
)
PARTS = ". /etc/confluent/docker/bash-config\n/etc/confluent/docker/configure\n/etc/confluent/docker/launch\n"
WITHOUT_ZOOKEEPER = "sed -i '/KAFKA_ZOOKEEPER_CONNECT/d' /etc/confluent/docker/configure\n"
WITH_ZOOKEEPER = (
    "printf 'clientPort=ZOOKEEPER\\ndataDir=/var/lib/zookeeper/data\\ndataLogDir=/var/lib/zookeeper/log\\n'"
    ">zookeeper.properties\nzookeeper-server-start zookeeper.properties &\n"
)
NO_CHECKS = "echo '' >/etc/confluent/docker/ensure\n"
RUNNING, STARTED = "Transitioning from RECOVERY to RUNNING", r"\[KafkaServer id=\d+\] started"

MODULES = {
    "java, apache": (KRAFT | {"CLUSTER_ID": CLUSTER_ID}, ADVERTISE + "/etc/kafka/docker/run\n", RUNNING),
    "java, confluent": (KRAFT | {"CLUSTER_ID": CLUSTER_ID}, ADVERTISE + "/etc/confluent/docker/run\n", RUNNING),
    "go": (
        KRAFT | {"CLUSTER_ID": CLUSTER_ID},
        ADVERTISE + WITHOUT_ZOOKEEPER + APPEND.format('"$(kafka-storage random-uuid)"') + NO_CHECKS + PARTS,
        RUNNING,
    ),
    "python": (
        COMMON,
        WITH_ZOOKEEPER + "export KAFKA_ZOOKEEPER_CONNECT=localhost:ZOOKEEPER\n" + ADVERTISE + PARTS,
        STARTED,
    ),
    "node": (
        COMMON | {"KAFKA_ZOOKEEPER_CONNECT": "localhost:ZOOKEEPER", "KAFKA_CONFLUENT_SUPPORT_METRICS_ENABLE": "false"},
        ADVERTISE + NO_CHECKS + WITH_ZOOKEEPER + "/etc/confluent/docker/run\n",
        STARTED,
    ),
}
"""Variables, start script and the expected text, for each module of testcontainers."""


class Container:
    """Files of the image below `root`, and free ports."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.ports = {name: str(free_port()) for name in ("CLIENTS", "BROKERS", "ZOOKEEPER")}
        self.output = root / "output"
        for path in re.findall(r"(?m)^COPY [^\n]*<<'\w+' (\S+)$", DOCKERFILE):
            self.write(path, written_file(path))
        self.write("/usr/local/bin/odradek", f'#!/bin/sh\nexec "{sys.executable}" -P -m odradek "$@"\n')
        for script in (ROOT / "bin").glob("kafka-*.sh"):
            (root / "usr/local/bin" / script.stem).symlink_to(script)
        for link, target in re.findall(r"ln -s (/\S+) (/\S+)", DOCKERFILE):
            self.path(target).parent.mkdir(parents=True, exist_ok=True)
            self.path(target).symlink_to(self.path(link))
        self.path("/var/lib/odradek").mkdir(parents=True)

    def path(self, path: str) -> Path:
        return self.root / path.removeprefix("/")

    def here(self, text: str) -> str:
        """A text with files and ports of the container, adapted to this machine."""
        text = re.sub(r"/(etc|var/lib)/(?=\w)", lambda match: f"{self.root}{match[0]}", text)
        text = re.sub("|".join(self.ports), lambda match: self.ports[match[0]], text)
        return text.replace("0.0.0.0", "127.0.0.1")

    def write(self, path: str, text: str) -> None:
        self.path(path).parent.mkdir(parents=True, exist_ok=True)
        self.path(path).write_text(self.here(text))
        self.path(path).chmod(0o755)

    @contextlib.contextmanager
    def running(self, variables: dict[str, str], script: str) -> Iterator[None]:
        """Run the container with a command that waits for `script`, which is copied there once it runs."""
        start = self.path("/tmp/testcontainers_start.sh")
        environment = {key: value for key, value in os.environ.items() if not key.startswith("KAFKA_")}
        environment |= {key: self.here(text) for key, text in variables.items()}
        environment |= {"PATH": f"{self.path('/usr/local/bin')}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
        environment["ODRADEK_PYTHON"] = sys.executable
        waits = f"while [ ! -x {start} ]; do sleep 0.05; done; {start}"
        with self.output.open("wb") as output:
            process = subprocess.Popen(
                [self.path("/usr/local/bin/start-broker"), "sh", "-c", waits],
                env=environment, cwd=self.path("/var/lib/odradek"), stdout=output, stderr=output,
                start_new_session=True,
            )  # fmt: skip
        try:
            self.write("/tmp/testcontainers_start.sh", "#!/bin/bash\n" + script)
            yield
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(PATIENCE_S)


@pytest.mark.parametrize("module", MODULES)
def test_start_scripts_of_testcontainers_start_a_broker(module: str, tmp_path: Path) -> None:
    variables, script, waited_for = MODULES[module]
    container = Container(tmp_path)
    with container.running(variables, script):
        eventually("it says that it runs", container.output.read_text, lambda text: re.search(waited_for, text))
        servers = {"bootstrap.servers": f"127.0.0.1:{container.ports['CLIENTS']}"}
        producer = Producer(servers)
        producer.produce("t", b"v")
        assert producer.flush(PATIENCE_S) == 0
        assert {each.port for each in producer.list_topics(timeout=PATIENCE_S).brokers.values()} == {
            int(container.ports["CLIENTS"])
        }
        consumer = Consumer(servers | {"group.id": "g", "auto.offset.reset": "earliest"})
        consumer.subscribe(["t"])
        message = consumer.poll(PATIENCE_S)
        assert message is not None
        assert message.value() == b"v"
        consumer.close()
