"""The shell scripts prepare their environment once, work from any directory, and find the brokers to stop."""

from __future__ import annotations

import os
import re
import shutil
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.waiting import eventually

ROOT = Path(__file__).resolve().parents[2]
LOCK_TEXT = "# an empty lock: nothing to install\n"


def make_checkout(root: Path) -> Path:
    """A checkout with the real scripts, an empty lock, and a broker and a tool that print their command lines."""
    shutil.copytree(ROOT / "bin", root / "bin")
    shutil.copytree(ROOT / "odradek", root / "odradek", ignore=shutil.ignore_patterns("__pycache__"))
    (root / "requirements").mkdir()
    (root / "requirements" / "broker.txt").write_text(LOCK_TEXT)
    for package, module in (("broker", "__main__"), ("tools", "echo_tool")):
        (root / package).mkdir()
        (root / package / "__init__.py").touch()
        (root / package / f"{module}.py").write_text(
            'if __name__ == "__main__":\n'
            "    import os, sys\n"
            '    print("called", sys.argv[1:], os.getcwd(), flush=True)\n'
        )
    return root


@pytest.fixture
def new_checkout(tmp_path: Path) -> Path:
    """A fresh checkout."""
    return make_checkout(tmp_path / "check out")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout with its environment, to copy: creating one takes seconds."""
    root = make_checkout(tmp_path_factory.mktemp("prepared") / "checkout")
    made = run(root / "bin" / "odradek-run", "echo-tool", cwd=root)
    assert made.returncode == 0, made.stderr
    return root


@pytest.fixture
def checkout(prepared: Path, tmp_path: Path) -> Path:
    """A checkout with its environment."""
    return Path(shutil.copytree(prepared, tmp_path / "check out", symlinks=True))


def run(*command: str | Path, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "LOG_DIR"))}
    return subprocess.run(
        [str(part) for part in command], cwd=cwd, env={**inherited, "PYTHON": sys.executable, **environment},
        capture_output=True, text=True, timeout=60, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip


def test_makes_the_environment_once(new_checkout: Path, tmp_path: Path) -> None:
    first = run(new_checkout / "bin" / "odradek-run", "echo-tool", "a b", cwd=tmp_path)
    assert "preparing" in first.stderr
    assert first.stdout == f"called ['a b'] {tmp_path}\n"
    second = run(new_checkout / "bin" / "odradek-run", "echo-tool", cwd=tmp_path)
    assert (second.stdout, second.stderr) == (f"called [] {tmp_path}\n", "")


def test_what_a_link_leads_to_is_used_and_never_emptied(checkout: Path, tmp_path: Path) -> None:
    owned = (checkout / ".venv").rename(tmp_path / "owned")
    (checkout / ".venv").symlink_to(owned)
    assert run(checkout / "bin" / "odradek-run", "echo-tool", cwd=tmp_path).stdout == f"called [] {tmp_path}\n"
    (checkout / "requirements" / "broker.txt").write_text(LOCK_TEXT + "# changed\n")
    before = sorted(owned.rglob("*"))
    refused = run(checkout / "bin" / "odradek-run", "echo-tool", cwd=tmp_path)
    assert refused.returncode == 1
    assert refused.stderr == (
        f"{checkout / '.venv'}, a link to {owned}, is not what broker.txt says: remove the link; "
        "an environment of others is not emptied\n"
    )
    assert sorted(owned.rglob("*")) == before
    (checkout / ".venv").unlink()
    owned.rename(tmp_path / "gone")
    (checkout / ".venv").symlink_to(owned)
    assert run(checkout / "bin" / "odradek-run", "echo-tool", cwd=tmp_path).returncode == 1, "it leads nowhere"


def test_a_changed_lock_makes_it_stale(checkout: Path, tmp_path: Path) -> None:
    (checkout / "requirements" / "broker.txt").write_text(LOCK_TEXT + "# changed\n")
    assert "preparing" in run(checkout / "bin" / "odradek-run", "echo-tool", cwd=tmp_path).stderr
    assert run(checkout / "bin" / "odradek-run", "echo-tool", cwd=tmp_path).stderr == ""


def test_what_a_start_imports_is_compiled_where_python_keeps_nothing(checkout: Path, tmp_path: Path) -> None:
    module = checkout / "tools" / "echo_tool.py"

    def is_compiled(path: Path) -> bool:
        """Checks against the current file: a compiled module records its source's time and size."""
        compiled = path.parent / "__pycache__" / f"{path.stem}.{sys.implementation.cache_tag}.pyc"
        wanted = struct.pack("<II", int(path.stat().st_mtime), path.stat().st_size)
        return compiled.exists() and compiled.read_bytes()[8:16] == wanted

    assert is_compiled(module), "making the environment compiles the checkout"
    module.write_text(module.read_text() + "# an update\n")
    assert not is_compiled(module)
    for _ in range(2):
        called = run(checkout / "bin" / "odradek-run", "echo-tool", cwd=tmp_path, PYTHONDONTWRITEBYTECODE="1")
        assert (called.stdout, called.stderr) == (f"called [] {tmp_path}\n", "")
        assert is_compiled(module)
        assert is_compiled(checkout / "broker" / "__main__.py")
    (checkout / "broker" / "__main__.py").write_text("does not compile")
    called = run(checkout / "bin" / "odradek-run", "echo-tool", cwd=tmp_path, PYTHONDONTWRITEBYTECODE="1")
    assert called.stderr == "", "what cannot be compiled is not told before somebody needs it"


def test_another_interpreter_makes_it_stale(checkout: Path, tmp_path: Path) -> None:
    stamp = checkout / ".venv" / "odradek.stamp"
    stamp.write_text("1 1\n" + LOCK_TEXT)
    assert "preparing" in run(checkout / "bin" / "odradek-run", "echo-tool", cwd=tmp_path).stderr


def test_two_at_once_prepare_once(new_checkout: Path, tmp_path: Path) -> None:
    command = [str(new_checkout / "bin" / "odradek-run"), "echo-tool"]
    environment = {**os.environ, "PYTHON": sys.executable}
    started = [
        subprocess.Popen(
            command, cwd=tmp_path, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for _ in range(3)
    ]
    said = [process.communicate(timeout=60) for process in started]
    assert [out for out, _ in said] == [f"called [] {tmp_path}\n"] * 3
    assert "".join(err for _, err in said).count("preparing") == 1


def test_a_lock_that_cannot_be_installed_is_one_clear_error(new_checkout: Path, tmp_path: Path) -> None:
    (new_checkout / "requirements" / "broker.txt").write_text("./does-not-exist.whl --hash=sha256:00\n")
    failed = run(new_checkout / "bin" / "odradek-run", "echo-tool", cwd=tmp_path)
    assert failed.returncode == 1
    assert failed.stderr.splitlines()[-1].startswith("could not prepare")
    assert failed.stdout == ""


def test_works_through_symlinks(checkout: Path, tmp_path: Path) -> None:
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "server").symlink_to(checkout / "bin" / "kafka-server-start.sh")
    (tmp_path / "relative").symlink_to("links/server")
    started = run(tmp_path / "relative", "s.properties", "--override", "a=b c", cwd=tmp_path)
    assert started.stdout == f"called ['s.properties', '--override', 'a=b c'] {tmp_path}\n", started.stderr


def test_start_without_properties_is_a_usage_error(checkout: Path, tmp_path: Path) -> None:
    said = run(checkout / "bin" / "kafka-server-start.sh", cwd=tmp_path)
    assert said.returncode == 1
    assert said.stderr.startswith("USAGE: ")


def test_daemon_writes_to_log_dir_and_is_found_by_stop(checkout: Path, tmp_path: Path) -> None:
    (checkout / "broker" / "__main__.py").write_text(
        "import signal, sys, time\n"
        "def stop(*_): print('stopping', flush=True); sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, stop)\n"
        "print('started', flush=True)\n"
        "time.sleep(100)\n"
    )
    logs = tmp_path / "the logs"
    output = logs / "kafkaServer.out"
    started = run(
        checkout / "bin" / "kafka-server-start.sh", "-daemon", "s.properties", cwd=tmp_path, LOG_DIR=str(logs)
    )
    assert (started.returncode, started.stdout, started.stderr) == (0, "", "")
    await_text(output, "started")
    path = private_ps(tmp_path, checkout)
    stopped = run(checkout / "bin" / "kafka-server-stop.sh", cwd=tmp_path, PATH=path)
    assert stopped.returncode == 0
    assert re.fullmatch(r"Stopping broker .+ \(/tmp/kafka-logs, PLAINTEXT://:9092, pid \d+\)\n", stopped.stdout)
    eventually("it stops", output.read_text, lambda text: "stopping" in text)
    # The process may take a moment to disappear after its last line.
    again = eventually(
        "the stop", lambda: run(checkout / "bin" / "kafka-server-stop.sh", cwd=tmp_path, PATH=path),
        lambda done: done.returncode != 0,
    )  # fmt: skip
    assert (again.returncode, again.stdout) == (1, "No kafka server to stop\n")


@pytest.fixture
def four_brokers(checkout: Path, tmp_path: Path) -> Iterator[dict[str, subprocess.Popen[str]]]:
    """Brokers by id: from the file, from an override, and a generated one in the log directory."""
    (checkout / "broker" / "__main__.py").write_text("import time\nprint('started', flush=True)\ntime.sleep(100)\n")
    (tmp_path / "one.properties").write_text("broker.id = 1\nlisteners=PLAINTEXT://127.0.0.1:9093\n")
    (tmp_path / "generated.properties").write_text(f"# broker.id=1\nlog.dirs={tmp_path},other\n")
    (tmp_path / "meta.properties").write_text("version=0\nbroker.id=1003\n")
    commands = {
        "1": ["one.properties"],
        "2": [str(tmp_path / "one.properties"), "--override", "broker.id=2"],
        "1003": ["generated.properties"],
        "0": ["--dev"],
    }
    brokers = {}
    for node_id, arguments in commands.items():
        brokers[node_id] = subprocess.Popen(
            [str(checkout / "bin" / "kafka-server-start.sh"), *arguments],
            cwd=tmp_path, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
    for process in brokers.values():
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
    yield brokers
    for process in brokers.values():
        process.kill()
        process.communicate(timeout=60)


def test_stop_one_broker_of_several(
    checkout: Path, tmp_path: Path, four_brokers: dict[str, subprocess.Popen[str]]
) -> None:
    def stop(*options: str) -> tuple[int, str]:
        done = run(
            checkout / "bin" / "kafka-server-stop.sh", *options, cwd=tmp_path, PATH=private_ps(tmp_path, checkout)
        )
        return done.returncode, done.stdout

    places = {
        "1003": f"{tmp_path},other, PLAINTEXT://:9092",
        "2": "/tmp/kafka-logs, PLAINTEXT://127.0.0.1:9093",
        "0": "--dev",
    }
    for stopped, (node_id, place) in enumerate(places.items(), 1):
        assert stop(f"--node-id={node_id}", "--process-role=controller") == (
            0, f"Stopping broker {node_id} ({place}, pid {four_brokers[node_id].pid})\n",
        )  # fmt: skip
        assert four_brokers[node_id].wait(60) == -signal.SIGTERM
        assert [each.poll() for each in four_brokers.values()].count(None) == len(four_brokers) - stopped
    assert stop("--node-id=7") == (1, "No kafka server to stop with node.id 7\n")
    assert stop("--process-role=controller") == (1, "No kafka server to stop\n")
    assert four_brokers["1"].poll() is None
    code, said = stop("--process-role=broker")
    assert (code, said.count("Stopping broker 1 ")) == (0, 1)
    assert four_brokers["1"].wait(60) == -signal.SIGTERM
    assert run(checkout / "bin" / "kafka-server-stop.sh", "--nodeid=1", cwd=tmp_path).returncode == 1
    assert run(checkout / "bin" / "kafka-server-stop.sh", "--help", cwd=tmp_path).returncode == 0


def test_odradek_stops_several_brokers_only_if_asked_to(
    checkout: Path, tmp_path: Path, four_brokers: dict[str, subprocess.Popen[str]]
) -> None:
    def stop(*options: str) -> subprocess.CompletedProcess[str]:
        return run(
            checkout / "bin" / "odradek", "server-stop", *options,
            cwd=tmp_path, PATH=private_ps(tmp_path, checkout),
        )  # fmt: skip

    refused = stop()
    assert (refused.returncode, refused.stdout) == (1, "")
    first, *brokers = refused.stderr.splitlines()
    assert first == "Several brokers run here; name one by --node-id=ID, or stop all of them with --all:"
    assert sorted(line.split()[1] for line in brokers) == sorted(four_brokers)
    assert [each.poll() for each in four_brokers.values()] == [None] * len(four_brokers)
    assert stop("--node-id=2").stdout.startswith("Stopping broker 2 (")
    stopped = stop("--all")
    assert (stopped.returncode, stopped.stdout.count("Stopping broker ")) == (0, 3), stopped
    assert {each.wait(60) for each in four_brokers.values()} == {-signal.SIGTERM}


def private_ps(directory: Path, checkout: Path) -> str:
    """A PATH whose `ps` shows only the brokers of `checkout`: a test must not stop others on this machine."""
    private = directory / "private"
    private.mkdir(exist_ok=True)
    (private / "ps").write_text(f'#!/bin/sh\n/bin/ps "$@" | grep -F "{checkout}"\n')
    (private / "ps").chmod(0o755)
    return f"{private}:{os.environ['PATH']}"


def test_a_checkout_has_the_command_of_a_wheel(checkout: Path, tmp_path: Path) -> None:
    said = run(checkout / "bin" / "odradek", "echo-tool", "a b", cwd=tmp_path)
    assert said.stdout == f"called ['a b'] {tmp_path}\n", said.stderr
    started = run(checkout / "bin" / "odradek", "server-start", "s.properties", cwd=tmp_path)
    assert started.stdout == f"called ['s.properties'] {tmp_path}\n", started.stderr
    assert run(checkout / "bin" / "odradek", "server-start", cwd=tmp_path).stderr.startswith(
        "USAGE: odradek server-start "
    )


def await_text(path: Path, text: str) -> None:
    waiting = subprocess.run(
        ["sh", "-c", 'until grep -q "$1" "$2" 2>/dev/null; do sleep 0.1; done', "sh", text, str(path)],
        timeout=60, check=False,
    )  # fmt: skip
    assert waiting.returncode == 0


@pytest.mark.parametrize("name", ["broker", "spark", "kerberos", "test"])
def test_locks_are_hashed_and_name_no_host(name: str) -> None:
    lines = (ROOT / "requirements" / f"{name}.txt").read_text().splitlines()
    pinned = [line for line in lines if "==" in line]
    assert pinned
    assert all(line.endswith("\\") for line in pinned)
    assert not [line for line in lines if "://" in line or "index-url" in line or "find-links" in line]


def test_the_broker_is_tested_with_the_versions_of_its_own_lock() -> None:
    def pins(name: str) -> set[str]:
        """The pins of a lock without their markers: a package that one lock needs on some versions, another may need on
        all.
        """
        lines = (ROOT / "requirements" / f"{name}.txt").read_text().splitlines()
        return {line.split(" ")[0] for line in lines if "==" in line}

    assert pins("broker") <= pins("test")
    assert pins("spark") <= pins("test")
