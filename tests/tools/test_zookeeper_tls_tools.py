"""Tools on a ZooKeeper with TLS: they read the file of Kafka's option `-zk-tls-config-file`."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.broker.zookeeper.secure_zookeeper import SecureZookeeper, secure_zookeeper
from tests.kit.broker_process import BrokerProcess
from tests.kit.jars import java, kafka_classpath
from tests.tools.test_zookeeper_commands import KAFKAS_SHELL, ROOT, run, script

pytestmark = [pytest.mark.java]


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureZookeeper]:
    with secure_zookeeper(tmp_path_factory.mktemp("secure")) as running:
        yield running


@pytest.fixture
def tls_file(secure: SecureZookeeper, tmp_path: Path) -> Path:
    """A file with all TLS properties of a broker."""
    path = tmp_path / "server.properties"
    settings = secure.settings(ssl_endpoint_identification_algorithm="https", ssl_enabled_protocols="TLSv1.3,TLSv1.2")
    path.write_text("".join(f"{key}={value}\n" for key, value in {"broker.id": "1", **settings}.items()))
    return path


def test_our_shell_and_kafkas(secure: SecureZookeeper, tls_file: Path) -> None:
    address = f"localhost:{secure.port}"
    made = run(script("zookeeper-shell.sh"), address, "-zk-tls-config-file", tls_file, "create", "/shell", "data")
    assert made.returncode == 0, made.stderr
    kafkas = [*java("-cp", kafka_classpath(), KAFKAS_SHELL, "-server", address), "-zk-tls-config-file", str(tls_file)]
    for command in (["get", "/shell"], ["ls", "/"]):
        theirs = subprocess.run([*kafkas, *command], capture_output=True, text=True, timeout=100, check=False)
        mine = run(script("zookeeper-shell.sh"), address, "-zk-tls-config-file", tls_file, *command)
        assert mine.returncode == theirs.returncode
        assert answer(mine.stdout) == answer(theirs.stdout) in {"data", "[shell, zookeeper]"}


def answer(output: str) -> str:
    """The last line that is not a watch event: another thread prints those, before the answer or after it."""
    return [line for line in output.splitlines() if line and not line.startswith(("WatchedEvent ", "WATCHER::"))][-1]


def test_a_tree_is_copied(secure: SecureZookeeper, tls_file: Path, tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "broker")
    broker.start()
    broker.stop()
    data, target = tmp_path / "broker" / "data", f"localhost:{secure.port}/copied"
    copy = [sys.executable, "-P", "-m", "odradek", "coordination", "copy", "--from", data, "--to", target]
    done = run(*copy, "--zk-tls-config-file", tls_file, PYTHONPATH=str(ROOT))
    assert (done.returncode, done.stderr) == (0, "")
    assert f" nodes from {data} to {target}" in done.stdout
    shown = run(script("zookeeper-shell.sh"), target, "-zk-tls-config-file", tls_file, "get", "/cluster/id")
    found = re.search(r'"id":"([^"]+)"', shown.stdout)
    assert found is not None, shown
    assert f"cluster.id={found[1]}\n" in (data / "meta.properties").read_text()
    tls_file.write_text("zookeeper.ssl.client.enable=true\n")
    refused = run(*copy, "--zk-tls-config-file", tls_file, PYTHONPATH=str(ROOT))
    assert refused.returncode == 1
    assert "for configuration zookeeper.clientCnxnSocket: zookeeper.ssl.client.enable needs" in refused.stderr
