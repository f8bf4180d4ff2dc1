"""`python -m build` creates a wheel that works in an empty environment and keeps its packages private."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.broker_process import PATIENCE_S, await_port, free_port

ROOT = Path(__file__).resolve().parents[2]
INSTALL_TIMEOUT_S = 300
"""For pip, which may have to download the dependencies."""
PACKAGES = [
    *("broker", "client", "cluster", "config", "environment", "protocol", "security", "spark_jobs", "storage", "tools"),
    "zookeeper",
]
FOR_TESTS_OF_USERS = re.compile(r"/test_mode/|/(pytest_plugin|kafka_under_test)\.py$")
"""Modules that a wheel carries because other projects test with them."""

pytestmark = pytest.mark.timeout(2 * INSTALL_TIMEOUT_S)


def strangers_environment() -> dict[str, str]:
    """The environment without anything that leads to the checkout."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}


def run(*command: str | Path, cwd: Path, timeout_s: float = 60, given: str = "") -> subprocess.CompletedProcess[str]:
    """Run to the end with output captured, outside the checkout and without its environment."""
    return subprocess.run(
        [str(part) for part in command], cwd=cwd, env=strangers_environment(), capture_output=True, text=True,
        timeout=timeout_s, check=False, input=given,
    )  # fmt: skip


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the wheel and the sdist, built from a copy of the files that git tracks."""
    source = tmp_path_factory.mktemp("source") / "odradek"
    tracked = run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", cwd=ROOT)
    for name in filter(None, tracked.stdout.split("\0")):
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, source / name)
    out = tmp_path_factory.mktemp("dist")
    built = run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, source, cwd=out)
    assert built.returncode == 0, built.stdout + built.stderr
    return out


@pytest.fixture(scope="module")
def environment(distributions: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with only the locked dependencies and the wheel: installing with pip would take longest."""
    venv = tmp_path_factory.mktemp("empty") / "venv"
    made = run(sys.executable, "-m", "venv", "--without-pip", venv, cwd=venv.parent)
    assert made.returncode == 0, made.stderr
    # As in most container images. Pip must still compile what it installs.
    pip = ("env", "PYTHONDONTWRITEBYTECODE=1", sys.executable, "-m", "pip", "--python", venv / "bin" / "python")
    quietly = ("install", "--quiet", "--disable-pip-version-check", "--no-input")
    locked = ("--require-hashes", "--requirement", ROOT / "requirements" / "broker.txt")
    wheel = ("--no-deps", next(distributions.glob("*.whl")))
    for what in (locked, wheel):
        installed = run(*pip, *quietly, *what, cwd=venv.parent, timeout_s=INSTALL_TIMEOUT_S)
        assert installed.returncode == 0, installed.stderr
    return venv


def site_packages(venv: Path) -> Path:
    return next((venv / "lib").glob("python3*")) / "site-packages"


@pytest.fixture
def working_directory(tmp_path: Path) -> Path:
    """A user's directory with packages named like ours, which must not be imported instead."""
    for package in PACKAGES:
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text("raise ImportError('the working directory was imported')\n")
    return tmp_path


@pytest.fixture
def server_start(environment: Path, working_directory: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`odradek server-start` in the foreground on a free port, and its address."""
    address = f"127.0.0.1:{free_port()}"
    properties = working_directory / "server.properties"
    properties.write_text(
        f"broker.id=0\nlisteners=PLAINTEXT://{address}\nlog.dirs={working_directory}/data\n"
        "offsets.topic.replication.factor=1\ngroup.initial.rebalance.delay.ms=0\n"
    )
    with (working_directory / "output").open("w") as output:
        process = subprocess.Popen(
            [str(environment / "bin" / "odradek"), "server-start", str(properties)],
            cwd=working_directory, env=strangers_environment(), stdin=subprocess.DEVNULL, stdout=output,
            stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
    yield process, address
    if process.poll() is None:
        process.kill()
    process.wait(10)


def test_sdist_carries_the_locks_and_the_scripts(distributions: Path) -> None:
    (sdist,) = distributions.glob("odradek-*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"requirements/broker.txt", "requirements/test.txt", "bin/kafka-server-start.sh", "bin/test"} <= names
    assert {"config/server.properties", "README.md", "LICENSE", "tests/packaging/test_wheel.py"} <= names


def test_wheel_has_one_top_level_package(distributions: Path) -> None:
    with zipfile.ZipFile(next(distributions.glob("*.whl"))) as wheel:
        top_level = {name.split("/")[0] for name in wheel.namelist()}
        packages = {name.split("/")[2] for name in wheel.namelist() if name.startswith("odradek/_server/")}
    assert {name for name in top_level if not name.endswith(".dist-info")} == {"odradek"}
    assert set(PACKAGES) <= packages


def test_wheel_carries_nothing_that_only_tests_or_developers_use(distributions: Path) -> None:
    with zipfile.ZipFile(next(distributions.glob("*.whl"))) as wheel:
        names = [name.lower() for name in wheel.namelist() if not FOR_TESTS_OF_USERS.search(name)]
        sources = {name: wheel.read(name).decode() for name in wheel.namelist() if name.endswith(".py")}
        del sources["odradek/pytest_plugin.py"]
    packages = {name.split("/")[2] for name in names if name.startswith("odradek/_server/")}
    assert packages == {*PACKAGES, "bin"}
    assert [name for name in names if re.search(r"(?<!perf[-_])test|memory_|fixture|simulat|/bench", name)] == []
    imports = re.compile(r"^\s*(?:from|import) (tests|bench|scripts|pytest|hypothesis|mypyc)\b", re.MULTILINE)
    assert {name: found for name, text in sources.items() if (found := imports.findall(text))} == {}


def test_what_few_need_is_imported_when_it_is_needed(environment: Path, tmp_path: Path) -> None:
    """kazoo is for a real ZooKeeper, prometheus-client for scrapes; a development broker needs neither."""
    server = site_packages(environment) / "odradek" / "_server"
    script = (
        f"import sys; sys.path.insert(0, {str(server)!r}); import broker.main, broker.server;"
        "print(sorted({'kazoo', 'prometheus_client', 'pyspark'} & set(sys.modules)))"
    )
    said = run(environment / "bin" / "python", "-c", script, cwd=tmp_path)
    assert (said.stdout, said.stderr) == ("[]\n", "")


def test_no_room_reaches_site_packages(environment: Path, tmp_path: Path) -> None:
    present = {path.stem for path in site_packages(environment).iterdir()}
    assert "odradek" in present
    assert present.isdisjoint(PACKAGES)
    for package in PACKAGES:
        imported = run(environment / "bin" / "python", "-c", f"import {package}", cwd=tmp_path)
        assert "ModuleNotFoundError" in imported.stderr, package


def test_what_is_installed_is_compiled(environment: Path) -> None:
    for package in ("odradek", "kazoo"):
        modules = {path.parent / path.stem for path in (site_packages(environment) / package).rglob("*.py")}
        tag = f".{sys.implementation.cache_tag}.pyc"
        assert len(modules) > 20
        assert [at for at in modules if not (at.parent / "__pycache__" / f"{at.name}{tag}").exists()] == [], package


def test_metadata_names_the_locked_dependencies() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        declared = set(tomllib.load(file)["project"]["dependencies"])
    lines = (ROOT / "requirements" / "broker.in").read_text().splitlines()
    assert declared == {line.replace('"', "'") for line in lines if line and not line.startswith("#")}


def test_version_and_help(environment: Path, working_directory: Path) -> None:
    odradek = environment / "bin" / "odradek"
    assert run(odradek, "--version", cwd=working_directory).stdout.startswith("odradek ")
    said = run(odradek, "--help", cwd=working_directory)
    assert said.returncode == 0
    assert {"server-start", "server-stop", "topics", "console-producer", "dump-log"} <= set(said.stdout.split())


def test_unknown_command_exits_1(environment: Path, working_directory: Path) -> None:
    said = run(environment / "bin" / "odradek", "no-such-tool", cwd=working_directory)
    assert said.returncode == 1
    assert "unknown command 'no-such-tool'" in said.stderr


def test_every_tool_can_be_called(environment: Path, working_directory: Path) -> None:
    odradek = environment / "bin" / "odradek"
    scripts = [path.stem.removeprefix("kafka-") for path in (ROOT / "bin").glob("kafka-*.sh")]
    tools = [name for name in scripts if name not in {"server-start", "server-stop", "run-class"}]
    assert len(tools) >= 14
    for tool in tools:
        said = run(odradek, tool, "--help", cwd=working_directory)
        assert "Traceback" not in said.stderr, (tool, said.stderr)
        assert "--help" in said.stdout + said.stderr or "usage" in (said.stdout + said.stderr).lower(), tool


def test_server_and_tools(
    environment: Path, working_directory: Path, server_start: tuple[subprocess.Popen[str], str]
) -> None:
    process, address = server_start
    await_port(int(address.rpartition(":")[2]), process, working_directory / "output", PATIENCE_S)
    odradek = environment / "bin" / "odradek"
    created = run(
        odradek, "topics", "--bootstrap-server", address, "--create", "--topic", "from-a-wheel", cwd=working_directory
    )
    assert created.returncode == 0, created.stdout + created.stderr
    listed = run(odradek, "topics", "--bootstrap-server", address, "--list", cwd=working_directory)
    assert listed.stdout.splitlines() == ["from-a-wheel"], listed.stderr
    of_topic = ("--bootstrap-server", address, "--topic", "from-a-wheel")
    sent = run(odradek, "console-producer", *of_topic, cwd=working_directory, given="one\ntwo\n")
    assert sent.returncode == 0, sent.stderr
    consumer = ("console-consumer", *of_topic, "--from-beginning", "--max-messages", "2")
    read = run(odradek, *consumer, cwd=working_directory)
    assert (read.returncode, read.stdout) == (0, "one\ntwo\n"), read.stderr
    dumped = run(
        *(odradek, "dump-log", "--print-data-log", "--files"),
        working_directory / "data" / "from-a-wheel-0" / f"{0:020}.log",
        cwd=working_directory,
    )
    assert "payload: two" in dumped.stdout, dumped.stderr
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0, (working_directory / "output").read_text()
    assert (working_directory / "data" / ".kafka_cleanshutdown").exists()
