"""`odradek cluster`: the directory, the processes, the command line and its errors. No broker is started here."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.main import FILES_ONLY
from config.broker_config import BrokerConfig
from config.properties import load_properties
from odradek.command_list import server_root
from tests.kit.broker_process import free_port
from tests.kit.security.certificates import Authority
from tests.kit.waiting import eventually
from tools import cluster
from tools.local_cluster import cluster_lifecycle, process_commands
from tools.local_cluster.cluster_actions import ACTIONS
from tools.local_cluster.cluster_directory import (
    ClusterDirectory,
    ClusterSecurity,
    ClusterState,
    LocalBroker,
    LocalZooKeeper,
)
from tools.local_cluster.cluster_processes import Condition, ProcessId, observe, send_signal, spawn
from tools.local_cluster.process_commands import broker_properties
from tools.support.common import ToolError


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator[ProcessId]:
    """A process that does nothing."""
    process = spawn([sys.executable, "-c", "import signal; signal.pause()"], tmp_path / "output", {})
    yield process
    send_signal(process, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(process.pid, 0)


def unchanged(directory: ClusterDirectory) -> str:
    """The end of a message about a cluster that keeps its security."""
    return (
        f"and that cannot change; `odradek cluster start --dir {directory.path}` starts it as it is, "
        "and another --dir makes another cluster"
    )


@pytest.fixture
def directory(tmp_path: Path) -> ClusterDirectory:
    path = tmp_path / "cluster"
    path.mkdir()
    return ClusterDirectory(path)


def a_state(*processes: ProcessId | None, zookeeper: LocalZooKeeper | None = None) -> ClusterState:
    """Brokers 1, 2, ... whose last processes were these."""
    brokers = tuple(LocalBroker(number, 9091 + number, process) for number, process in enumerate(processes, 1))
    return ClusterState(zookeeper or LocalZooKeeper("127.0.0.1:2181", 2181), brokers, {"log.retention.hours": "1"})


# -- processes ---------------------------------------------------------------------------------------------------------


def test_a_process_is_paused_goes_on_and_ends(sleeper: ProcessId) -> None:
    assert observe(sleeper).condition is Condition.RUNNING
    eventually("a Python in memory", lambda: observe(sleeper).memory_bytes, lambda found: found > 1_000_000)
    for number, condition in (
        (signal.SIGSTOP, Condition.PAUSED),
        (signal.SIGCONT, Condition.RUNNING),
        (signal.SIGKILL, Condition.DEAD),
    ):
        assert send_signal(sleeper, number)
        eventually("the process", lambda: observe(sleeper).condition, lambda found, wanted=condition: found is wanted)
    assert not send_signal(sleeper, signal.SIGKILL), "a process that nobody has waited for is dead all the same"


def test_another_process_with_the_id_is_never_signalled(sleeper: ProcessId) -> None:
    stranger = ProcessId(sleeper.pid, "before")
    assert observe(stranger).condition is Condition.DEAD
    assert not send_signal(stranger, signal.SIGKILL)
    assert observe(sleeper).condition is Condition.RUNNING
    assert not send_signal(None, signal.SIGKILL)


def test_a_process_that_does_not_stop_is_killed(
    tmp_path: Path, directory: ClusterDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_lifecycle, "STOP_TIMEOUT_S", 0.1)
    ready = tmp_path / "ready"
    code = (
        "import signal, pathlib, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        "pathlib.Path(sys.argv[1]).touch(); signal.pause()"
    )
    deaf = spawn([sys.executable, "-c", code, str(ready)], tmp_path / "output", {})
    eventually("it ignores the signal", ready.exists)
    directory.save(a_state(deaf))
    lines: list[str] = []
    asyncio.run(cluster_lifecycle.ClusterLifecycle(directory, lines.append).stop())
    assert observe(deaf).condition is Condition.DEAD
    assert lines == ["stopping broker 1", "broker 1 has not ended after 0.1 s; killing it"]


# -- the directory -----------------------------------------------------------------------------------------------------


def test_messages_name_the_directory_unless_it_is_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert ClusterDirectory("odradek-cluster").command("start") == "odradek cluster start"
    assert ClusterDirectory("a b").command("stop") == f"odradek cluster stop --dir '{tmp_path}/a b'"


def test_what_is_saved_is_loaded(directory: ClusterDirectory) -> None:
    state = a_state(ProcessId(12, "boot/1"), None)
    directory.save(state)
    assert directory.load() == state
    on_tree = a_state(None, zookeeper=LocalZooKeeper("127.0.0.1:2181", 2181, is_embedded=True))
    directory.save(on_tree)
    assert directory.load() == on_tree
    directory.save(state.with_broker(LocalBroker(3, 9094)))
    assert [broker.broker_id for broker in directory.load().brokers] == [1, 2, 3]
    assert sorted(path.name for path in directory.path.iterdir()) == ["cluster.json"], "nothing temporary is left"
    assert state.bootstrap_servers == "127.0.0.1:9092,127.0.0.1:9093"


@pytest.mark.parametrize("text", ["", "[]", '{"format": 1}', json.dumps({"format": 2})])
def test_a_damaged_state_is_named(text: str, directory: ClusterDirectory) -> None:
    (directory.path / "cluster.json").write_text(text)
    with pytest.raises(ToolError, match=r"cluster\.json is damaged"):
        directory.load()


def test_properties_mean_what_was_given(tmp_path: Path) -> None:
    directory = ClusterDirectory(tmp_path / "back\\slash \u4e2d")
    state = a_state(None, None, None)
    settings = broker_properties(directory, state, state.broker(2))
    directory.write_properties(2, settings)
    read = load_properties(directory.properties_file(2).read_bytes())
    assert read == settings
    assert read["log.dirs"] == f"{directory.path}/broker-2/data"
    assert read["broker.rack"] == socket.gethostname()
    assert read["log.retention.hours"] == "1"
    assert (read["default.replication.factor"], read["min.insync.replicas"]) == ("3", "2")
    del read["zookeeper.connect"]
    assert BrokerConfig(read).unknown() == []


def test_one_broker_needs_no_other() -> None:
    state = a_state(None)
    settings = broker_properties(ClusterDirectory("/c"), state, state.broker(1))
    assert (settings["offsets.topic.replication.factor"], settings["min.insync.replicas"]) == ("1", "1")


# -- the command line --------------------------------------------------------------------------------------------------


def said(capsys: pytest.CaptureFixture[str]) -> str:
    """The one line of an error."""
    (line,) = capsys.readouterr().err.splitlines()
    return line


@pytest.mark.parametrize(
    "command", [["status"], ["stop"], ["add"], ["kill", "1"], ["pause", "1"], ["resume", "1"], ["logs"]]
)
def test_without_a_cluster(command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cluster.main([*command, "--dir", str(tmp_path / "none")]) == 1
    assert said(capsys).startswith(f"there is no cluster in {tmp_path}/none; `odradek cluster start` makes one")
    assert not (tmp_path / "none").exists()


def test_mistakes_of_the_command_line(directory: ClusterDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    directory.save(a_state(None, None, zookeeper=LocalZooKeeper("zk:2181/kafka")))
    for command, message in {
        "kill 7": "the cluster has no broker 7; its brokers are 1, 2",
        "kill 1": "broker 1 does not run",
        "pause 1": "broker 1 is dead, not running",
        "resume 2": "broker 2 is dead, not paused",
        "kill zookeeper": "the ZooKeeper at zk:2181/kafka was not started by this cluster",
        "logs 3": "the cluster has no broker 3; its brokers are 1, 2",
        "start --brokers 3": f"the cluster in {directory.path} has 2 brokers; "
        f"`odradek cluster add --dir {directory.path}` adds one",
        "start --base-port 1234": f"broker 1 of the cluster in {directory.path} has port 9092",
        "start --zookeeper other:1": f"the cluster in {directory.path} is on the ZooKeeper zk:2181/kafka",
        "start --coordination embedded": f"the cluster in {directory.path} is on ZooKeeper at zk:2181/kafka",
        "start --tls": f"the cluster in {directory.path} was made with neither --tls nor --sasl, "
        f"{unchanged(directory)}",
        "start --set a=b": f"the cluster in {directory.path} exists; change "
        f"{directory.path}/broker-*/server.properties instead",
    }.items():
        assert cluster.main([*command.split(), "--dir", str(directory.path)]) == 1, command
        assert said(capsys) == message


def test_the_status_of_a_dead_cluster_is_a_failure(
    directory: ClusterDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    directory.save(a_state(None, None))
    assert cluster.main(["status", "--dir", str(directory.path)]) == 1
    assert capsys.readouterr().out.endswith("\n\nNo broker answers.\n")


@pytest.mark.parametrize(
    "command",
    [
        "start --brokers 0",
        "start --base-port 65536",
        "start --zookeeper nowhere",
        "start --sasl scram",
        "kill",
        "kill one",
        "logs -n x",
    ],
)
def test_values_that_make_no_sense(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cluster.main(command.split())
    assert end.value.code == 1
    assert "error:" in capsys.readouterr().err


def test_keys_that_each_broker_has_for_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "new"
    assert cluster.main(["start", "--dir", str(path), "--set", "listeners=PLAINTEXT://:1"]) == 1
    assert said(capsys) == "--set listeners: each broker has its own, which the command chooses"
    assert not ClusterDirectory(path).exists


def test_security_is_chosen_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Settings cannot undo it, and it stays as the cluster was created."""
    with pytest.raises(SystemExit):
        cluster.main(["start", "--dir", str(tmp_path / "new"), "--sasl", "GSSAPI"])
    assert "invalid choice: 'GSSAPI' (choose from 'PLAIN'" in capsys.readouterr().err
    new = ["--dir", str(tmp_path / "new"), "--base-port", str(free_port()), "--brokers", "1"]
    for options, key in (("--tls", "ssl.keystore.location"), ("--sasl PLAIN", "sasl.enabled.mechanisms")):
        assert cluster.main(["start", *new, *options.split(), "--set", f"{key}=x"]) == 1
        assert said(capsys) == f"--set {key}: {options} chooses it"
    assert not ClusterDirectory(tmp_path / "new").exists
    directory = ClusterDirectory(tmp_path / "old")
    directory.save(a_state(None).replace(security=ClusterSecurity(has_tls=True, mechanism="PLAIN")))
    assert directory.load().security == ClusterSecurity(has_tls=True, mechanism="PLAIN")
    assert cluster.main(["start", "--dir", str(directory.path), "--sasl", "SCRAM-SHA-512"]) == 1
    assert said(capsys) == f"the cluster in {directory.path} was made with --tls --sasl PLAIN, {unchanged(directory)}"


def test_keys_that_cannot_be_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An existing cluster keeps its keys, so one line names the unusable ones."""
    files = tmp_path / "security"
    files.mkdir()
    words = ["start", "--dir", str(tmp_path), "--base-port", str(free_port()), "--brokers", "1"]
    authority, other = Authority(), Authority("other")
    authority.write_pem(files / "authority.pem")
    assert cluster.main([*words, "--tls"]) == 1
    assert said(capsys) == f"{files}/authority-key.pem (No such file or directory)"
    for key, reason in ((other.identity.key_pem(), "the private key is not that of the certificate"), ("", "")):
        (files / "authority-key.pem").write_text(key)
        assert cluster.main([*words, "--tls"]) == 1
        assert said(capsys).startswith(f"the authority in {files} cannot be used: {reason}")
    (files / "users.properties").write_text("broker=b\n")
    assert cluster.main([*words, "--sasl", "PLAIN"]) == 1
    assert said(capsys) == f"{files}/users.properties has no password of admin"
    assert (files / "authority.pem").read_text() == authority.pem


def test_a_port_in_use_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    port = free_port()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        command = ["start", "--dir", str(tmp_path), "--base-port", str(port - 1), "--brokers", "2"]
        assert cluster.main(command) == 1
    assert said(capsys).startswith(f"port {port}, which is for broker 2, is in use;")


def test_a_cluster_that_runs_is_not_started_again(
    sleeper: ProcessId, directory: ClusterDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    for service in (LocalZooKeeper("zk:2181"), LocalZooKeeper("127.0.0.1:2181", 2181, sleeper)):
        directory.save(a_state(sleeper, zookeeper=service))
        assert cluster.main(["start", "--dir", str(directory.path)]) == 1
        assert said(capsys) == f"the cluster in {directory.path} is already running"


def test_two_commands_at_once(directory: ClusterDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    directory.save(a_state(None))
    with directory.locked():
        assert cluster.main(["stop", "--dir", str(directory.path)]) == 1
    assert said(capsys) == f"another `odradek cluster` command is at work in {directory.path}"


def test_a_broker_that_cannot_start_shows_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The next start is a first one again: files made from a bad setting are not kept."""
    zookeeper_port = free_port()
    directory = ClusterDirectory(tmp_path / "cluster")
    with socket.socket() as service:
        service.bind(("127.0.0.1", zookeeper_port))
        service.listen()
        words = ["--dir", str(directory.path), "--base-port", str(free_port()), "--brokers", "1"]
        zookeeper = f"127.0.0.1:{zookeeper_port}"
        assert cluster.main(["start", *words, "--zookeeper", zookeeper, "--set", "num.partitions=none"]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"broker 1 has ended; {directory.path}/broker-1/server.log says\n")
    assert "num.partitions" in error
    assert not directory.exists


def test_without_zookeeper(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nowhere = f"127.0.0.1:{free_port()}"
    words = ["--dir", str(tmp_path), "--base-port", str(free_port()), "--brokers", "1"]
    assert cluster.main(["start", *words, "--zookeeper", nowhere]) == 1
    assert said(capsys) == f"no ZooKeeper answers at {nowhere}"


def test_a_tree_or_a_zookeeper_is_kept(directory: ClusterDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    for is_embedded, other, title in ((True, "zookeeper", "the coordination tree"), (False, "embedded", "ZooKeeper")):
        directory.save(a_state(None, zookeeper=LocalZooKeeper("127.0.0.1:2181", 2181, is_embedded=is_embedded)))
        assert cluster.main(["start", "--dir", str(directory.path), "--coordination", other]) == 1
        assert said(capsys) == f"the cluster in {directory.path} is on {title} at 127.0.0.1:2181"
        assert cluster.main(["kill", "zookeeper", "--dir", str(directory.path)]) == 1
        assert said(capsys) == f"{title} does not run"


def test_a_broker_is_started_by_this_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", f"/elsewhere{os.pathsep}{server_root()}")
    command = process_commands.broker_command(Path("server.properties"))
    assert command.words == [sys.executable, "-P", "-m", "broker", "server.properties"]
    assert command.environment["PYTHONPATH"] == f"{server_root()}{os.pathsep}/elsewhere"
    # Its log is rotated, and no other file grows.
    assert (command.environment["ODRADEK_DAEMON"], command.environment["LOG_DIR"]) == (FILES_ONLY, ".")


# -- logs --------------------------------------------------------------------------------------------------------------


def test_the_last_lines_of_each_log(directory: ClusterDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    directory.save(a_state(None, None))
    for number, lines in ((1, ["a", "b", "c"]), (2, ["d", "unfinished"])):
        directory.part(number).mkdir()
        directory.log_file(number).write_text("\n".join(lines))
    assert cluster.main(["logs", "-n", "1", "--dir", str(directory.path)]) == 0
    assert capsys.readouterr().out.splitlines() == ["1 | b", "2 | d"]
    assert cluster.main(["logs", "1", "--dir", str(directory.path)]) == 0
    assert capsys.readouterr().out.splitlines() == ["a", "b"]


def test_logs_are_followed(directory: ClusterDirectory) -> None:
    directory.save(a_state(None))
    directory.part(1).mkdir()
    log = directory.log_file(1)
    log.write_text("first\n")
    command = [sys.executable, "-m", "odradek", "cluster", "logs", "-f", "--dir", str(directory.path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as shown:
        assert shown.stdout is not None
        assert shown.stdout.readline() == "1 | first\n"
        with log.open("a") as file:
            file.write("second\n")
        assert shown.stdout.readline() == "1 | second\n"
        # An hour has passed: the log is rotated.
        with log.open("a") as file:
            file.write("third\n")
        log.rename(log.with_suffix(".log.2026-01-01-00"))
        log.write_text("fourth\n")
        assert shown.stdout.readline() == "1 | third\n"
        assert shown.stdout.readline() == "1 | fourth\n"
        shown.terminate()


def test_every_action_explains_itself(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("ODRADEK_COMMAND", "odradek cluster")
    for action in ACTIONS:
        with pytest.raises(SystemExit) as end:
            cluster.main([action, "--help"])
        assert end.value.code == 0
        assert f"odradek cluster {action}" in capsys.readouterr().out
    assert cluster.main(["--help"]) == 0
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines() if line.startswith("    ")]
    assert {*ACTIONS, "cluster-id", "unregister"} <= set(listed)
