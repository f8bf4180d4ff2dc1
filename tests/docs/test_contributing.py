"""docs/contributing is true: what its pages tell a contributor to write is enough, in the files that they count."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.additions import ADDITIONS, copy_with_additions
from tests.kit.broker_process import ROOT

PAGES = {path.stem: path.read_text(encoding="utf-8") for path in (ROOT / "docs/contributing").glob("*.md")}

KEY = """
from config.broker_config import BrokerConfig
from config.definitions import ConfigError
from tests.docs.documents import own_keys
from tools import check_config

given = {"broker.id": "0", "greeting.interval.ms": "7"}
assert BrokerConfig.of(given).greeting_interval_ms == 7
try:
    BrokerConfig.of({**given, "greeting.interval.ms": "0"})
except ConfigError as error:
    print(error)
check_config.main(["/dev/null", "--override", "broker.id=0", "--override", "greeting.interval.ms=7"])
print(own_keys())
"""
BROKER = """
import asyncio
from protocol.messages.group_offsets import ConsumerGroupDescribeRequest
from tests.broker.security.secured import ADMIN, ALICE, SecuredBroker
from tests.docs.documents import compatibility, metrics
from tests.kit.scraping import scrape

async def main():
    async with SecuredBroker(metrics_listener="127.0.0.1:0") as broker:
        for user in (ADMIN, ALICE):
            reply = await broker.wire(user).ask(ConsumerGroupDescribeRequest(group_id="g"), 0)
            print(user, reply.error_code)
        samples = await asyncio.to_thread(scrape, broker.server.metrics_server.port)
        print("greetings", samples["odradek_greetings_total", ()])
        labels = (("request", "ConsumerGroupDescribe"),)
        print("requests", samples["kafka_network_requestmetrics_requests_total", labels])

asyncio.run(main())
print(compatibility())
print(metrics())
"""
FAULT = """
from tests.simulation.plan import draw_plan
from tests.simulation.seeds import run_seed

print(*(seed for seed in range(1, 9) if "second kill" in draw_plan(seed).faults))
outcome = run_seed(next(seed for seed in range(1, 9) if "second kill" in draw_plan(seed).faults))
print(outcome.faults["second kill"], outcome.violations)
"""


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("copy")
    copy_with_additions(directory)
    return directory


def run(copy: Path, *arguments: str) -> str:
    """The output of Python in the copy, which must succeed."""
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1", "ODRADEK_COMMAND": ""}
    command = [sys.executable, "-P", *arguments]
    done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


def listed_files(page: str) -> list[str]:
    """The files in the first table of a page."""
    table = page.partition("\n|---")[2].partition("\n\n")[0]
    return re.findall(r"(?m)^\| `([^`]+)` \|", table)


def shown_lines(page: str) -> Iterator[tuple[str, str]]:
    """Each file of the page's diffs, with consecutive lines that the diff adds to it."""
    for diff in re.findall(r"(?ms)^```diff\n(.*?)^```", page):
        for part in re.split(r"(?m)^--- .*\n", diff)[1:]:
            file, _, body = part.removeprefix("+++ b/").partition("\n")
            for hunk in re.split(r"(?m)^@@\n", body):
                yield file, "".join(line[1:] for line in hunk.splitlines(keepends=True))


def test_each_addition_has_a_page() -> None:
    assert PAGES.keys() == ADDITIONS.keys()


@pytest.mark.parametrize("name", sorted(PAGES))
def test_the_page_counts_the_files_that_an_addition_touches(name: str) -> None:
    files = listed_files(PAGES[name])
    counted = re.search(r"\*\*(\d) files? of the (?:product|tests)\*\*", PAGES[name])
    assert counted is not None
    assert int(counted[1]) == len(files)
    assert f"| {len(files)} | [docs/contributing/{name}.md]" in (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    touched = list(dict.fromkeys(each.file for each in ADDITIONS[name]))
    if all(each.before for each in ADDITIONS[name]):
        assert touched == files
    else:
        assert [Path(each).parent for each in touched] == [Path(each).parent for each in files]


@pytest.mark.parametrize("name", sorted(PAGES))
def test_the_page_shows_lines_of_the_code(name: str) -> None:
    shown = list(shown_lines(PAGES[name]))
    assert {file for file, _ in shown} == set(listed_files(PAGES[name]))
    assert [lines for file, lines in shown if lines not in (ROOT / file).read_text(encoding="utf-8")] == []


def test_a_declared_key_is_parsed_checked_and_documented(copy: Path) -> None:
    output = run(copy, "-c", KEY)
    assert "Invalid value 0 for configuration greeting.interval.ms: Value must be at least 1" in output
    assert re.search(r"(?m)^supported +greeting\.interval\.ms=7$", output)
    assert "| `greeting.interval.ms` | `60000` | How often the broker says hello. |" in output


def test_an_api_and_a_metric_are_served_and_documented(copy: Path) -> None:
    lines = run(copy, "-c", BROKER).splitlines()
    assert lines[:4] == ["User:admin 0", "User:alice 30", "greetings 7.0", "requests 2.0"]
    assert "| ConsumerGroupDescribe | 69 | 0-0 | 0-0 |" in lines
    assert "| `odradek_greetings_total` | counter |  |  | How often the broker said hello. |" in lines


def test_a_tool_and_a_job_are_found(copy: Path) -> None:
    commands = run(copy, "-m", "odradek", "--help")
    assert re.search(r"(?m)^  greet +Say hello to a broker\.$", commands)
    assert re.search(r"(?m)^  spark-count-greetings +Count how often a broker said hello\.$", commands)
    assert run(copy, "-m", "odradek", "greet", "--name", "Ann") == "hello, Ann\n"
    assert run(copy, "-m", "spark_jobs", "count-greetings", "today") == "7 greetings today\n"


def test_a_fault_happens_in_the_seeds_that_have_it(copy: Path) -> None:
    seeds, outcome = run(copy, "-c", FAULT).splitlines()
    assert 0 < len(seeds.split()) < 8
    happened, _, violations = outcome.partition(" ")
    assert int(happened) > 0
    assert violations == "[]"
