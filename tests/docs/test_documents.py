"""The documents match the code: generated parts are up to date, and everything they name or link exists."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from broker.metadata.config_service import ConfigService
from broker.metadata.metadata_cache import MetadataCache
from cluster.controller.commands import CommandFence
from cluster.metadata_image import MetadataImage
from config.broker_config import BrokerConfig
from config.broker_keys import BROKER_KEYS, DYNAMIC_BROKER_KEYS
from config.definitions import value_to_text
from config.properties import PROVIDERS, parse_properties
from config.topic_config import TOPIC_KEYS
from protocol.errors import ApiError
from security.authorization import AUTHORIZER_KEYS
from tests.docs.documents import main, missing, rewritten, served_apis

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
READMES = [*PAGES, ROOT / "spark_jobs" / "README.md"]
CURRENT = [page for page in PAGES if page.name != "CHANGELOG.md"]
FOLDERS = tuple(f"{path.name}/" for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith("."))


def prose(page: Path) -> str:
    """The text of a page without its code blocks."""
    return re.sub(r"(?ms)^```.*?^```", "", page.read_text(encoding="utf-8"))


def quoted(page: Path) -> list[str]:
    """The words between single backticks."""
    return re.findall(r"`([^`\n]+)`", prose(page))


def anchors(page: Path) -> set[str]:
    """The anchors that a page's headings make, by GitHub's rule."""
    headings = re.findall(r"(?m)^#+ (.*)$", prose(page))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_generated_parts_are_up_to_date() -> None:
    assert main(["--check"]) == 0


def test_a_stale_part_is_made_anew() -> None:
    stale = "x\n<!-- compatibility:begin -->\nold\n<!-- compatibility:end -->\ny"
    fresh = rewritten(stale)
    assert "old" not in fresh
    assert "| Produce | 0 | 0-11 | 0-11 |" in fresh
    assert rewritten(fresh) == fresh
    assert len(served_apis()) >= 28


@pytest.mark.parametrize("page", READMES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if link.startswith(("http://", "https://")):
            continue
        file, _, anchor = link.partition("#")
        target = page.parent / file if file else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


@pytest.mark.parametrize("page", CURRENT, ids=lambda page: str(page.relative_to(ROOT)))
def test_keys_that_are_named_exist(page: Path) -> None:
    names = {match[1] for text in quoted(page) if (match := re.fullmatch(r"([a-z]+(?:\.[a-z]+)+)(?:=.*)?", text))}
    names -= {name for name in names if name.endswith((".py", ".properties", ".toml", ".ddl", ".md"))}
    names -= {name for name in names if name.startswith(("kafka.", "storage.", "broker.", "cluster.", "protocol."))}
    assert names <= {*BROKER_KEYS, *AUTHORIZER_KEYS, *DYNAMIC_BROKER_KEYS, *TOPIC_KEYS, PROVIDERS}


@pytest.mark.parametrize("page", CURRENT, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_that_are_named_exist(page: Path) -> None:
    names = {text.split()[0] for text in quoted(page) if text.startswith(FOLDERS)}
    names.discard("zookeeper/HOST")  # a Kerberos principal
    assert [name for name in names if not re.search(r"[*{]", name) and not (ROOT / name).exists()] == []


@pytest.mark.parametrize("page", READMES, ids=lambda page: str(page.relative_to(ROOT)))
def test_lines_fit_a_screen(page: Path) -> None:
    lines = page.read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if len(line) > 130 and not line.startswith("|")] == []


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 110


def test_the_readme_names_what_is_missing() -> None:
    """Except "features" and forwarding, which belong to KRaft."""
    section = (
        (ROOT / "README.md").read_text(encoding="utf-8").partition("## What is not there yet")[2].partition("##")[0]
    )
    wanted = set(re.findall(r"KIP-\d+", missing())) | {"KRaft", "remote storage", "JMX"}
    assert {each for each in wanted if each not in section} == set()


def test_the_servers_own_file_starts_it_with_every_key_that_it_shows() -> None:
    text = (ROOT / "config" / "server.properties").read_text(encoding="utf-8")
    shown = re.sub(r"(?m)^#(?=[a-z.]+=)", "", text)
    assert shown != text
    properties = parse_properties(shown) | {"listeners": "INSIDE://:9092,OUTSIDE://:9093"}
    properties["advertised.listeners"] = "INSIDE://a:9092,OUTSIDE://b:9093"
    config = BrokerConfig.of(properties)
    assert config.unknown() == config.without_effect() == []


def test_no_page_denies_what_a_broker_starts_with() -> None:
    """Pages once denied listeners with TLS and SASL, stores and KRaft nodes."""
    pages = [*CURRENT, ROOT / "config" / "server.properties"]
    denials = re.compile(r"Only PLAINTEXT listeners|JKS has to be converted|\(SSL, SASL, another authorizer")
    assert [page.name for page in pages if denials.search(page.read_text(encoding="utf-8"))] == []


def test_dynamic_in_the_table_is_what_kafka_configs_can_change() -> None:
    rows = re.findall(
        r"(?m)^\| `([a-z.]+)` \|.*\| (no|yes|each broker) \|", (ROOT / "docs/configuration.md").read_text()
    )
    service = ConfigService(BrokerConfig({"broker.id": "0"}), MetadataCache(CommandFence(), MetadataImage()))
    for name, dynamic in rows:
        declared = BROKER_KEYS.get(name)
        text = None if declared is None else value_to_text(declared.default)
        if text is None:
            continue
        try:
            asyncio.run(service.validate_broker({name: text}, per_broker=True))
            is_refused = False
        except ApiError as error:
            is_refused = "Cannot update these configs dynamically" in str(error)
        assert is_refused == (dynamic == "no"), name
