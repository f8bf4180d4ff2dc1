"""bin/zookeeper-server-start.sh, -stop and zookeeper-shell.sh: the real ones, or one line that names what is
missing.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.broker_process import free_port
from tests.kit.jars import java, kafka_classpath, require
from tests.kit.waiting import eventually
from tests.kit.zookeeper import real_zookeeper, served_tree
from tests.kit.zookeeper_process import ZookeeperProcess
from tools.local_cluster.cluster_lifecycle import is_serving
from tools.zookeeper import zookeeper_jars

KAFKAS_SHELL = "org.apache.zookeeper.ZooKeeperMainWithTlsSupportForKafka"
COMMANDS = [
    *("ls -s /", "set /kept more", "get -s /kept", "addauth digest a:b", "getAcl /kept", "create -e -s /e_ x"),
    *("stat -w /kept", "deleteall /kept", "ls /", "create -t 10 /ttl x", "quit\n"),
]
ROOT = Path(__file__).resolve().parents[2]


def run(*command: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        list(map(str, command)),
        env=os.environ | {"ODRADEK_PYTHON": sys.executable} | environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def script(name: str) -> Path:
    return ROOT / "bin" / name


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("zookeeper-server-start.sh", [], "USAGE: zookeeper-server-start.sh [-daemon] zookeeper.properties\n"),
        ("zookeeper-server-start.sh", ["none.properties"], "cannot read none.properties: No such file or directory\n"),
        ("zookeeper-shell.sh", [], "USAGE: zookeeper-shell.sh zookeeper_host:port[/path] [-zk-"),
        ("zookeeper-shell.sh", ["a:1", "-zk-tls-config-file", "no"], "cannot read no: No such file or directory\n"),
        ("zookeeper-shell.sh", ["a:1", "-zk-tls-config-file"], "Error: no filename provided with option -zk-tls-"),
    ],
)
def test_mistakes_are_one_line(name: str, arguments: list[str], said: str) -> None:
    done = run(script(name), *arguments)
    assert done.returncode == 1
    assert done.stderr.startswith(said)
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("module", ["tools.zookeeper.zookeeper_server", "tools.zookeeper_shell"])
def test_a_machine_without_java_is_told(module: str, tmp_path: Path) -> None:
    argument = tmp_path / "zookeeper.properties"
    argument.touch()
    done = run(sys.executable, "-P", "-m", module, argument, PATH=str(tmp_path), JAVA_HOME="", PYTHONPATH=str(ROOT))
    assert done.returncode == 1
    assert done.stderr == "ZooKeeper needs Java 11 or newer; there is no java on the PATH or in JAVA_HOME\n"


def test_a_machine_without_jars_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zookeeper_jars, "_directories", lambda: iter([tmp_path]))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(zookeeper_jars.ZookeeperMissingError, match=r"install PySpark .* or set ZOOKEEPER_HOME"):
        zookeeper_jars.class_path()


def test_an_installed_zookeeper_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jars = tmp_path / "lib"
    jars.mkdir()
    for name in ("zookeeper-9.9.9.jar", "zookeeper-jute-9.9.9.jar", "slf4j-api-2.jar", "guava-1.jar"):
        (jars / name).touch()
    monkeypatch.setenv("ZOOKEEPER_HOME", str(tmp_path))
    names = [Path(jar).name for jar in zookeeper_jars.class_path().split(os.pathsep)]
    assert names == ["slf4j-api-2.jar", "zookeeper-9.9.9.jar", "zookeeper-jute-9.9.9.jar"]


@pytest.mark.java
def test_start_look_and_stop(tmp_path: Path) -> None:
    require("java")
    port = free_port()
    properties = tmp_path / "zookeeper.properties"
    sample = (ROOT / "config" / "zookeeper.properties").read_text()
    properties.write_text(f"{sample}dataDir={tmp_path / 'data'}\nclientPort={port}\n")
    started = run(script("zookeeper-server-start.sh"), "-daemon", properties, LOG_DIR=str(tmp_path))
    assert (started.returncode, started.stdout, started.stderr) == (0, "", "")
    eventually("it serves", lambda: is_serving("127.0.0.1", port))
    shown = run(script("zookeeper-shell.sh"), f"127.0.0.1:{port}", "ls", "/")
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.rstrip().endswith("[zookeeper]")
    # The script stops every server that this user may signal: here it only sees this one.
    ps = tmp_path / "ps"
    ps.write_text(f'#!/bin/sh\nPATH=/bin:/usr/bin ps "$@" | grep -e {properties}\n')
    ps.chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    assert run(script("zookeeper-server-stop.sh"), PATH=path).returncode == 0
    eventually("it stops", lambda: not is_serving("127.0.0.1", port))
    eventually("there is none", lambda: run(script("zookeeper-server-stop.sh"), PATH=path).returncode == 1)
    assert run(script("zookeeper-server-stop.sh"), PATH=path).stdout == "No zookeeper server to stop\n"


@pytest.mark.java
def test_the_shells_work_on_a_served_tree(tmp_path: Path) -> None:
    """ZooKeeper's shell, and the class that Kafka's script runs."""
    with served_tree(tmp_path) as server:
        made = run(script("zookeeper-shell.sh"), server.address, "create", "/kept", "data")
        assert made.returncode == 0, made.stderr
        assert "Created /kept" in made.stderr + made.stdout
        kafkas = java("-cp", kafka_classpath(), KAFKAS_SHELL, "-server", server.address)
        commands = "\n".join(COMMANDS)
        done = subprocess.run(kafkas, input=commands, capture_output=True, text=True, timeout=60, check=False)
        for said in ("[kept]", "more", "dataVersion = 1", "'world,'anyone", "Created /e_0000000001", "[e_0000000001]"):
            assert said in done.stdout + done.stderr, (said, done.stdout, done.stderr)
        assert "WatchedEvent state:SyncConnected type:NodeDeleted path:/kept" in done.stdout
        assert "Unimplemented" in done.stdout + done.stderr


@pytest.mark.java
def test_a_killed_server_comes_back_on_its_data(tmp_path: Path) -> None:
    with real_zookeeper(tmp_path) as server:
        shown = run(script("zookeeper-shell.sh"), server.address, "create", "/kept", "data")
        assert shown.returncode == 0, shown.stderr
        server.kill()
        assert not is_serving("127.0.0.1", server.port)
        server.start()
        assert run(script("zookeeper-shell.sh"), server.address, "get", "/kept").stdout.rstrip().endswith("data")


@pytest.mark.java
def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    with (
        real_zookeeper(tmp_path / "first") as server,
        pytest.raises(RuntimeError, match=f"something listens at {server.address} already"),
    ):
        ZookeeperProcess(tmp_path / "second", server.port).start()
    bad = ZookeeperProcess(tmp_path / "third", free_port(), settings={"tickTime": "fast"})
    with pytest.raises(RuntimeError, match="NumberFormatException"):
        bad.start()
    assert bad.process is None
