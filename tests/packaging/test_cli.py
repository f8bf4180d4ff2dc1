"""The command `odradek`: its list of commands, its suggestions and the completion of shells."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from odradek import cli, command_list

ROOT = Path(__file__).resolve().parents[2]


def odradek(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "odradek", *arguments],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def test_every_command_has_a_description() -> None:
    described = command_list.commands(ROOT)
    assert {"server-start", "topics", "console-consumer", "check-config", "spark-lake", "completion"} <= set(described)
    for name, text in described.items():
        assert text.endswith("."), name
        assert 10 < len(text) < 96, (name, text)
        assert "Kafka class" not in text, name
    assert described["topics"] == "Create, list, describe, grow and delete topics."


@pytest.mark.parametrize(
    ("typed", "meant"), [("topic", "topics"), ("consumer-group", "consumer-groups"), ("server-strat", "server-start")]
)
def test_a_mistyped_command_gets_a_suggestion(
    typed: str, meant: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ODRADEK_COMMAND", "")
    assert cli.main([typed]) == 1
    assert f"unknown command '{typed}'; did you mean {meant}" in capsys.readouterr().err


def test_spark_jobs_by_their_names(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert odradek("spark", "lake", "--help").stdout.startswith("usage: odradek spark-lake ")
    assert odradek("spark", "lake", "compact", "--help").stdout.startswith("usage: odradek spark-lake ")
    monkeypatch.setenv("ODRADEK_COMMAND", "")
    assert cli.main(["spark"]) == 1
    assert "name a job, one of: aggregate, " in capsys.readouterr().err
    assert cli.main(["spark", "lkae"]) == 1
    assert "did you mean spark-lake" in capsys.readouterr().err


def test_nothing_close_points_to_the_help() -> None:
    assert command_list.unknown_command(ROOT, "xyzzy").endswith("`odradek --help` lists the commands.")


def test_usage_lines_name_the_command_that_was_typed() -> None:
    assert odradek("producer-perf-test", "--topic").stderr.startswith("usage: odradek producer-perf-test ")
    started = odradek("server-start")
    assert started.returncode == 1
    assert started.stderr.startswith("USAGE: odradek server-start [-daemon]")


@pytest.fixture(scope="module")
def bash_script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    script = tmp_path_factory.mktemp("completion") / "odradek.bash"
    script.write_text(odradek("completion", "bash").stdout)
    return script


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("consumer-g", ["consumer-groups"]),
        ("topics --repl", ["--replication-factor", "--replica-assignment"]),
        ("topics --topic flights --del", ["--delete", "--delete-config"]),
        ("producer-perf-test --topic t --th", ["--throughput"]),
        ("server-start --d", ["--dev"]),
        ("server-start -d", ["-daemon"]),
        ("server-stop --n", ["--node-id"]),
        ("completion b", ["bash"]),
        ("cluster st", ["start", "status", "stop"]),
        ("cluster cl", ["cluster-id"]),
        ("cluster start --bro", ["--brokers"]),
        ("cluster start --coordination e", ["embedded"]),
        ("cluster start st", []),
        ("storage format --cl", ["--cluster-id"]),
        ("verifiable-consumer --group-protocol C", ["CLASSIC", "CONSUMER"]),
        ("topics --command-config REA", ["README.md"]),
        ("check-config --override a=b REA", ["README.md"]),
        ("coordination copy --from doc", ["docs"]),
        ("spark-la", ["spark-lag", "spark-lake", "spark-lake-compact"]),
    ],
)
def test_bash_completes(typed: str, offered: list[str], bash_script: Path) -> None:
    words = ["odradek", *typed.split(" ")]
    program = (
        'source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1));'
        ' [[ $(complete -p odradek) =~ "-F "([a-z_]+) ]]; "${BASH_REMATCH[1]}"; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        ["bash", "-c", program, "bash", str(bash_script), *words],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert sorted(done.stdout.split()) == sorted(offered)


@pytest.mark.parametrize("shell", ["zsh", "fish", "tcsh", "powershell"])
def test_other_shells_get_a_script_with_commands_and_options(shell: str) -> None:
    script = odradek("completion", shell).stdout
    assert {"consumer-groups", "bootstrap-server"} <= set(re.findall(r"[a-z]+(?:-[a-z]+)+", script))


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
def test_completion_of_zsh_is_a_script() -> None:
    subprocess.run(["zsh", "-n"], input=odradek("completion", "zsh").stdout, text=True, check=True)


def test_completion_needs_a_shell() -> None:
    assert "choose from" in odradek("completion", "csh").stderr
    assert odradek("completion").returncode == 2
    assert "bashrc" in odradek("completion", "--help").stdout
