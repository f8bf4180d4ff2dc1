"""A PostgreSQL whose changes Debezium, in Kafka Connect, sends to a broker."""

from __future__ import annotations

import getpass
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from tests.kit.broker_process import await_port, free_port
from tests.kit.jars import debezium_classpath, java

DATABASE = "postgres"
_OWNER = "postgres"
"""The user that runs the server in tests run by root: PostgreSQL refuses to run as root."""


def _programs() -> Path:
    """The directory of PostgreSQL's programs; skips the test without them."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    named = shutil.which("initdb")
    if not found and named is None:
        pytest.skip("needs PostgreSQL's server (Debian's package postgresql)")
    return found[-1].parent if found else Path(str(named)).resolve().parent


class Postgres:
    """A server with logical decoding, on a free port; it owns `directory`, and `stop` removes it."""

    def __init__(self) -> None:
        self._programs = _programs()
        self.directory = Path(tempfile.mkdtemp(prefix="odradek-postgres-"))
        self.port = free_port()
        self.user = "odradek"
        self._as_owner: list[str] = []
        if getpass.getuser() == "root":
            shutil.chown(self.directory, _OWNER)
            self._as_owner = ["runuser", "-u", _OWNER, "--"]
        self._data = str(self.directory / "data")
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Create the database and return when it listens."""
        output = self.directory / "postgres.log"
        program = [*self._as_owner, str(self._programs / "initdb"), "-D", self._data, "-A", "trust", "-U", self.user]
        with output.open("wb") as log:
            subprocess.run(program, check=True, stdout=log, stderr=log, cwd="/")
            options = {
                "listen_addresses": "127.0.0.1", "port": self.port, "unix_socket_directories": self.directory,
                "wal_level": "logical", "fsync": "off",
            }  # fmt: skip
            settings = [word for name, value in options.items() for word in ("-c", f"{name}={value}")]
            self._process = subprocess.Popen(
                [str(self._programs / "postgres"), "-D", self._data, *settings],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/",
                user=_OWNER if self._as_owner else None,
            )  # fmt: skip
        await_port(self.port, self._process, output, 60)

    def run(self, statements: str) -> str:
        """Run SQL statements, each a transaction unless they include BEGIN; returns their output, a row a line."""
        command = [
            str(self._programs / "psql"), "-h", "127.0.0.1", "-p", str(self.port), "-U", self.user,
            "-v", "ON_ERROR_STOP=1", "-qAtX", DATABASE,
        ]  # fmt: skip
        done = subprocess.run(command, input=statements, capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout

    def stop(self) -> None:
        """Stop it and remove its directory."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(60)
        shutil.rmtree(self.directory, ignore_errors=True)


class Debezium:
    """Kafka Connect with a connector from one table to the topic `PREFIX.TABLE`."""

    def __init__(self, directory: Path, bootstrap: str, database: Postgres, table: str, prefix: str) -> None:
        directory.mkdir()
        self.output = directory / "connect.log"
        json_converter = "org.apache.kafka.connect.json.JsonConverter"
        worker = {
            "bootstrap.servers": bootstrap, "key.converter": json_converter, "value.converter": json_converter,
            "key.converter.schemas.enable": "false", "value.converter.schemas.enable": "true",
            "offset.storage.file.filename": directory / "offsets", "offset.flush.interval.ms": 500,
            "plugin.discovery": "service_load", "listeners": f"http://127.0.0.1:{free_port()}",
        }  # fmt: skip
        connector = {
            "name": "changes", "connector.class": "io.debezium.connector.postgresql.PostgresConnector", "tasks.max": 1,
            "plugin.name": "pgoutput", "publication.autocreate.mode": "filtered",
            "database.hostname": "127.0.0.1", "database.port": database.port, "database.user": database.user,
            "database.password": "none", "database.dbname": DATABASE, "topic.prefix": prefix,
            "table.include.list": table, "decimal.handling.mode": "string", "poll.interval.ms": 50,
        }  # fmt: skip
        self._files = [str(directory / "worker.properties"), str(directory / "connector.properties")]
        for path, properties in zip(self._files, (worker, connector), strict=True):
            Path(path).write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start without waiting."""
        options = ["-Xmx512m", "-XX:TieredStopAtLevel=1", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
        command = java(*options, "-cp", debezium_classpath(), "org.apache.kafka.connect.cli.ConnectStandalone")
        with self.output.open("ab") as output:
            self._process = subprocess.Popen(
                [*command, *self._files], stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=dict(os.environ)
            )

    @property
    def is_running(self) -> bool:
        """Whether it is running."""
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """End it (SIGKILL)."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(60)
