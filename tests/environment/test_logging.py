"""A broker's log lines: format, files, and levels that change while it runs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from broker.main import FILES_ONLY
from tests.kit.broker_process import PATIENCE_S, ROOT, BrokerProcess
from tests.kit.waiting import eventually

LINE = re.compile(r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}\] [A-Z]+ .* \([\w.]+\)")
HOURS = """
import logging, sys
from environment import daemon_log_files
daemon_log_files.KEPT_FILES = 3
daemon_log_files.open_log_files(sys.argv[1], logging.Formatter("%(message)s"))
root = logging.getLogger()
handler = root.handlers[0]
handler.rolloverAt = sys.maxsize  # whatever time it is now
for hour in range(6):
    root.warning("hour %d", hour)
    # As if the hour were over, and one later each time.
    handler.rolloverAt = 3600 * (400_000 + hour)
root.warning("now")
"""


def configs(broker: BrokerProcess, *arguments: str) -> str:
    """The output of our kafka-configs for the broker's loggers."""
    done = subprocess.run(
        [
            *(sys.executable, "-P", "-m", "odradek", "configs", "--bootstrap-server", broker.address),
            *("--entity-type", "broker-loggers", "--entity-name", "0", *arguments),
        ],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def written(path: Path) -> str:
    """A log file, after those of the hours that have ended meanwhile."""
    return "".join(each.read_text() for each in (*sorted(path.parent.glob(f"{path.name}.*")), path) if each.exists())


def completed(path: Path) -> list[str]:
    """The APIs of the requests in a kafka-request.log."""
    lines = written(path).splitlines()
    found = [re.search(r" Completed request:(\{.*\}) \(kafka.request.logger\)$", line) for line in lines]
    assert None not in found, lines
    return [json.loads(each[1])["requestHeader"]["requestApiKeyName"] for each in found if each]


def test_a_daemons_files_and_levels_that_change_while_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logs = tmp_path / "logs"
    monkeypatch.setenv("ODRADEK_DAEMON", "1")
    monkeypatch.setenv("LOG_DIR", str(logs))
    broker = BrokerProcess(tmp_path)
    broker.start()
    try:
        shown = configs(broker, "--describe")
        assert "kafka.request.logger=WARN" in shown
        assert "kafka.server.KafkaApis=INFO" in shown
        assert completed(logs / "kafka-request.log") == []
        said = configs(broker, "--alter", "--add-config", "kafka.request.logger=DEBUG,kafka=DEBUG")
        assert said == "Completed updating config for broker-logger 0.\n"
        assert "kafka.request.logger=DEBUG" in configs(broker, "--describe")
        assert {"API_VERSIONS", "DESCRIBE_CONFIGS"} <= set(completed(logs / "kafka-request.log"))
        configs(broker, "--alter", "--delete-config", "kafka.request.logger,kafka")
        configs(broker, "--describe")
        before = len(completed(logs / "kafka-request.log"))
        configs(broker, "--describe")
        assert len(completed(logs / "kafka-request.log")) == before
    finally:
        assert broker.stop() == 0
    server_log = written(logs / "server.log")
    assert "started (" in server_log
    assert "Completed request" not in server_log
    assert [line for line in server_log.splitlines() if not LINE.fullmatch(line)] == []
    assert "INFO" in written(logs / "controller.log")
    # The terminal shows the lines of server.log.
    assert server_log == broker.output.read_text()


def test_output_that_nobody_rotates_stays_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ODRADEK_DAEMON", FILES_ONLY)
    monkeypatch.setenv("LOG_DIR", str(tmp_path / "logs"))
    broker = BrokerProcess(tmp_path)
    broker.launch()
    eventually("the start", lambda: "started (" in written(tmp_path / "logs" / "server.log"))
    assert broker.stop() == 0
    assert broker.output.read_text() == ""


def test_in_the_foreground_no_files_are_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOG_DIR", str(tmp_path / "logs"))
    broker = BrokerProcess(tmp_path)
    broker.start()
    assert broker.stop() == 0
    assert not (tmp_path / "logs").exists()


def test_an_hour_a_file_and_the_oldest_go(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", HOURS, str(tmp_path)],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT), "TZ": "UTC"}, capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    kept = {path.name: path.read_text() for path in tmp_path.glob("server.log*")}
    assert kept == {
        "server.log": "now\n",
        "server.log.2015-08-19-18": "hour 3\n",
        "server.log.2015-08-19-19": "hour 4\n",
        "server.log.2015-08-19-20": "hour 5\n",
    }


def test_a_log_directory_that_cannot_be_written_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ODRADEK_DAEMON", "1")
    monkeypatch.setenv("LOG_DIR", str(tmp_path / "file" / "logs"))
    broker = BrokerProcess(tmp_path)
    # Wait for its exit, not for its port: another program may listen there meanwhile.
    with broker.output.open("ab") as output, broker.spawn(output) as process:
        assert process.wait(PATIENCE_S) == 1
    assert re.search("cannot write logs to .*/file/logs: Not a directory", broker.output.read_text())
