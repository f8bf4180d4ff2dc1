"""The command `odradek`: its list of commands, its suggestions and the completion of shells."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from odradek import cli, command_list, completion

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


def test_completion_of_bash(tmp_path: Path) -> None:
    script = tmp_path / "completion.bash"
    script.write_text(completion.bash_script(ROOT))

    def complete(*words: str) -> list[str]:
        program = (
            f'. "{script}"; COMP_WORDS=({" ".join(words)} ""); COMP_CWORD={len(words)};'
            ' COMP_WORDS[COMP_CWORD]="$1"; _odradek; printf "%s\\n" "${COMPREPLY[@]}"'
        )
        *_, last = words
        head, current = words[:-1], last
        program = program.replace(f"COMP_CWORD={len(words)}", f"COMP_CWORD={len(head)}")
        done = subprocess.run(["bash", "-c", program, "bash", current], capture_output=True, text=True, check=True)
        return done.stdout.split()

    assert complete("odradek", "consumer-g") == ["consumer-groups"]
    assert complete("odradek", "topics", "--repl") == ["--replica-assignment", "--replication-factor"]
    assert "--throughput" in complete("odradek", "producer-perf-test", "--th")
    assert complete("odradek", "server-start", "--d") == ["--dev"]
    assert complete("odradek", "completion", "b") == ["bash"]
    assert complete("odradek", "topics", "file") == []
    assert complete("odradek", "cluster", "st") == ["start", "status", "stop"]
    assert complete("odradek", "cluster", "start", "--bro") == ["--brokers"]
    assert complete("odradek", "cluster", "start", "st") == []


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
def test_completion_of_zsh_is_a_script(tmp_path: Path) -> None:
    script = tmp_path / "completion.zsh"
    script.write_text(completion.zsh_script(ROOT))
    subprocess.run(["zsh", "-n", str(script)], check=True)


def test_completion_of_zsh_knows_commands_and_options() -> None:
    script = completion.zsh_script(ROOT)
    assert "'topics:Create, list, describe, grow and delete topics.'" in script
    assert "topics) compadd -- --alter " in script
    described = script.partition("commands=(\n")[2].partition("\n  )")[0]
    assert dict(entry.split(":", 1) for entry in shlex.split(described)) == command_list.commands(ROOT)


def test_completion_needs_a_shell() -> None:
    assert odradek("completion", "fish").returncode == 1
    assert odradek("completion", "--help").returncode == 0
