"""Starting and stopping a broker process: its messages, its leftovers, and the exit code."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.kit.broker_process import ROOT, BrokerProcess, free_port
from tests.kit.waiting import eventually

SECONDS = 60


def snapshot(directory: Path) -> dict[str, bytes]:
    """Every file below `directory` with its content."""
    return {str(path): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def run_broker(directory: Path, *arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """Run a broker whose start is expected to fail, until it exits."""
    directory.mkdir(exist_ok=True)
    values = {
        "broker.id": "0",
        "listeners": f"PLAINTEXT://127.0.0.1:{free_port()}",
        "log.dirs": str(directory / "data"),
    } | {name.replace("_", "."): value for name, value in settings.items()}
    properties = directory / "server.properties"
    properties.write_text("".join(f"{key}={value}\n" for key, value in values.items()))
    return subprocess.run(
        [sys.executable, "-P", "-m", "broker", str(properties), *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


def the_error(result: subprocess.CompletedProcess[str]) -> str:
    """The one line that explains the failed start."""
    assert result.returncode == 1, result.stdout + result.stderr
    lines = [line for line in (result.stdout + result.stderr).splitlines() if " WARN " not in line]
    assert len(lines) == 1, lines
    return lines[0]


# -- what does not start -----------------------------------------------------------------------------------------------


def test_a_port_in_use(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        error = the_error(run_broker(tmp_path, listeners=f"PLAINTEXT://127.0.0.1:{port}"))
    assert error.endswith(
        f" FATAL The broker cannot start: Socket server failed to bind to 127.0.0.1:{port}: Address already in use; "
        "stop the program that listens there, or change listeners (kafka.Kafka)"
    )
    assert not (tmp_path / "data").exists()


def test_a_port_of_the_metrics_in_use(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        error = the_error(run_broker(tmp_path, metrics_listener=address))
    assert f"metrics.listener failed to bind to {address}: Address already in use" in error
    assert not (tmp_path / "data").exists()


def test_another_brokers_directory(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path)
    broker.start()
    broker.stop()
    before = snapshot(tmp_path / "data")
    error = the_error(run_broker(tmp_path, broker_id="7"))
    assert "Configured broker.id 7 doesn't match stored broker.id 0" in error
    assert str(tmp_path / "data") in error
    assert snapshot(tmp_path / "data") == before


def test_another_clusters_directory(tmp_path: Path) -> None:
    for name, cluster in (("one", "AAAAAAAAAAAAAAAAAAAAAA"), ("two", "BBBBBBBBBBBBBBBBBBBBBB")):
        (tmp_path / name).mkdir()
        text = f"version=0\nbroker.id=0\ncluster.id={cluster}\n"
        (tmp_path / name / "meta.properties").write_text(text)
    before = snapshot(tmp_path)
    error = the_error(run_broker(tmp_path / "run", log_dirs=f"{tmp_path / 'one'},{tmp_path / 'two'}"))
    assert "doesn't match stored clusterId BBBBBBBBBBBBBBBBBBBBBB" in error
    after = snapshot(tmp_path)
    assert {path: content for path, content in after.items() if "/run/" not in path} == before


def test_a_directory_in_use_by_a_running_broker(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path)
    broker.start()
    try:
        error = the_error(run_broker(tmp_path))
    finally:
        broker.kill()
    assert "Failed to acquire lock on file .lock in" in error


def test_one_directory_under_two_names(tmp_path: Path) -> None:
    """Otherwise each log would be loaded twice, and one copy deleted as the leftover of a move."""
    broker = BrokerProcess(tmp_path)
    broker.start()
    broker.stop()
    data = tmp_path / "data"
    assert f"Duplicate log directory found: {data}, {data}" in the_error(
        run_broker(tmp_path, log_dirs=f"{data},{data}")
    )
    (tmp_path / "again").symlink_to(data)
    for paths in (f"{data},{tmp_path / 'again'}", f"{data},{data}/"):
        before = snapshot(data)
        error = the_error(run_broker(tmp_path, log_dirs=paths))
        assert "Failed to acquire lock on file .lock in" in error
        assert snapshot(data) == before


def test_a_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    error = the_error(run_broker(tmp_path, log_dirs=str(tmp_path / "file" / "data")))
    assert "file/data" in error
    assert "Not a directory" in error


def test_a_directory_that_holds_something_else(tmp_path: Path) -> None:
    (tmp_path / "data" / "holiday pictures").mkdir(parents=True)
    error = the_error(run_broker(tmp_path))
    assert "holiday pictures" in error


@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="needs root to mount a small disk")
def test_a_full_disk(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)], check=False)
    if mounted.returncode:
        pytest.skip("this machine does not let tests mount a disk")
    try:
        with (disk / "filler").open("wb", buffering=0) as filler:
            try:
                while filler.write(b"x" * 4096):
                    pass
            except OSError:
                pass
        error = the_error(run_broker(tmp_path, log_dirs=str(disk / "data")))
        assert "No space left on device" in error
    finally:
        subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="needs root to mount a disk")
@pytest.mark.parametrize("directory", ["", "data"])
def test_a_disk_that_cannot_be_written(directory: str, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", str(disk)], check=False).returncode:
        pytest.skip("this machine does not let tests mount a disk")
    try:
        error = the_error(run_broker(tmp_path, log_dirs=str(disk / directory)))
        assert f"Log directory {disk / directory} cannot be used" in error
        assert "Read-only file system" in error
    finally:
        subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"num_partitions": "many"}, ["num.partitions", "many"]),
        ({"num_partitions": "0"}, ["num.partitions", "0", "at least 1"]),
        ({"listeners": "PLAINTEXT//nowhere"}, ["listeners", "PLAINTEXT//nowhere"]),
        ({"metrics_listener": "nowhere"}, ["metrics.listener", "nowhere", "host:port"]),
        ({"metrics_listener": "127.0.0.1:70000"}, ["metrics.listener", "between 0 and 65535"]),
        (
            {"listeners": "PLAINTEXT://127.0.0.1:9092,SSL://127.0.0.1:9093"},
            ["ssl.keystore.location", "listener SSL needs a key"],
        ),
        ({"authorizer_class_name": "org.example.Authorizer"}, ["authorizer.class.name", "AclAuthorizer"]),
        ({"process_roles": "broker"}, ["process.roles"]),
        ({"zookeeper_connect": "localhost:port"}, ["zookeeper.connect", "localhost:port", "is not host:port"]),
        ({"remote_log_storage_system_enable": "true"}, ["remote.log.storage.system.enable"]),
        ({"create_topic_policy_class_name": "x.Y"}, ["create.topic.policy.class.name"]),
    ],
)
def test_a_bad_value_and_a_promise_that_cannot_be_kept(
    tmp_path: Path, settings: dict[str, str], words: list[str]
) -> None:
    error = the_error(run_broker(tmp_path, **settings))
    for word in words:
        assert word in error
    assert not (tmp_path / "data").exists()


def test_a_missing_file_and_bad_arguments(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    for arguments, word in (
        ([str(tmp_path / "no.properties")], "no.properties"),
        ([], "USAGE"),
        ([str(ROOT / "config/server.properties"), "--override", "novalue"], "novalue"),
        ([str(ROOT / "config/server.properties"), "--what"], "--what"),
    ):
        result = subprocess.run(
            [sys.executable, "-P", "-m", "broker", *arguments],
            env=environment, capture_output=True, text=True, timeout=SECONDS, check=False,
        )  # fmt: skip
        assert result.returncode == 1
        assert word in result.stderr + result.stdout


# -- what starts and stops ---------------------------------------------------------------------------------------------


def test_ready_is_said_once_and_an_unknown_key_is_a_warning(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path, {"no.such.key": "1", "num.network.threads": "5"})
    broker.start()
    assert broker.stop() == 0
    output = broker.output.read_text()
    assert output.count("[KafkaServer id=0] started (") == 1
    assert "WARN Unknown configuration 'no.such.key' is ignored" in output
    assert "'num.network.threads' is known to Kafka but has no effect here" in output
    assert "shut down completed" in output


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    broker = BrokerProcess(tmp_path)
    broker.start()
    broker.send_signal(number)
    assert broker.wait() == 0
    assert (tmp_path / "data" / ".kafka_cleanshutdown").exists()
    assert "broker.id=0" in (tmp_path / "data" / "meta.properties").read_text()


def test_a_start_that_takes_long_is_ended_by_a_signal(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    # A reader blocks until a writer writes, and this one never does.
    journal = tmp_path / "data" / "odradek-coordination.journal"
    os.mkfifo(journal)
    broker = BrokerProcess(tmp_path)
    with broker.output.open("wb") as output:
        process = broker.spawn(output)
    try:
        writer = eventually("it reads the journal", lambda: opened_for_writing(journal), lambda found: found >= 0)
        try:
            process.terminate()
            assert process.wait(SECONDS) == 1
        finally:
            os.close(writer)
    finally:
        process.kill()
        process.wait()
    assert "Stopped before the start was complete" in broker.output.read_text()
    assert not (tmp_path / "data" / ".kafka_cleanshutdown").exists()


def opened_for_writing(pipe: Path) -> int:
    """A descriptor, or -1 while no process reads."""
    try:
        return os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return -1


def test_a_broker_without_an_id_gets_one_and_keeps_it(tmp_path: Path) -> None:
    for _ in range(2):
        broker = BrokerProcess(tmp_path, {"broker.id": "-1"})
        broker.start()
        broker.stop()
    assert "broker.id=1001" in (tmp_path / "data" / "meta.properties").read_text()
    assert broker.output.read_text().count("[KafkaServer id=1001] started") == 2


def test_a_clean_stop_does_not_wait_for_clients_that_wait(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path)
    broker.start()
    host, port = broker.address.split(":")
    with socket.create_connection((host, int(port))):
        started = time.monotonic()
        assert broker.stop() == 0
        assert time.monotonic() - started < 10


def test_a_development_broker_needs_no_file(tmp_path: Path) -> None:
    output = tmp_path / "output"
    with output.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "broker", "--dev"],
            env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}, stdout=file, stderr=file,
        )  # fmt: skip
    try:
        eventually("it says where it is", output.read_text, lambda text: "metrics           http://" in text)
        address = output.read_text().partition("bootstrap server  ")[2].split()[0]
        host, _, port = address.rpartition(":")
        socket.create_connection((host, int(port)), timeout=SECONDS).close()
        assert list(tmp_path.glob("odradek-*/data"))
    finally:
        process.terminate()
        code = process.wait(SECONDS)
    assert code == 0, output.read_text()
    assert not list(tmp_path.glob("odradek-*"))


def test_help_is_no_mistake() -> None:
    result = subprocess.run(
        [sys.executable, "-P", "-m", "broker", "--help"],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip
    assert (result.returncode, result.stderr) == (0, "")
    assert "--dev" in result.stdout
