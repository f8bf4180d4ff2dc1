"""Dockerfile and the compose files, parsed, with variables filled in like `docker compose` does."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
CLUSTER = "docker-compose.yml"
SINGLE = "docker-compose.single.yml"

_VARIABLE = re.compile(r"\$\{(\w+):-(.*?)\}")


def composition(name: str, **variables: str) -> dict[str, Any]:
    """A compose file, with the user's variables."""
    text = (ROOT / name).read_text()
    found: dict[str, Any] = yaml.safe_load(_VARIABLE.sub(lambda match: variables.get(match[1], match[2]), text))
    return found


def brokers(services: Mapping[str, Any]) -> dict[str, Any]:
    """The services that run the image `broker`."""
    return {name: each for name, each in services.items() if each.get("build", {}).get("target") == "broker"}


def environment(service: Mapping[str, Any]) -> dict[str, str]:
    """The variables of a service."""
    return {name: str(text) for name, text in service.get("environment", {}).items()}


def published(service: Mapping[str, Any]) -> dict[tuple[str, int], int]:
    """The container's port that is published at an address and port of the host."""
    ports = {}
    for entry in service.get("ports", []):
        host, outside, inside = entry.rsplit(":", 2)
        ports[host, int(outside)] = int(inside)
    return ports


def written_file(path: str) -> str:
    """The text of a file that the Dockerfile writes."""
    found = re.search(rf"(?ms)^COPY [^\n]*<<'(\w+)' {re.escape(path)}\n(.*?)^\1$", DOCKERFILE)
    assert found is not None, path
    return found[2]


def entry_point(target: str) -> list[str]:
    """The entry point of an image."""
    stage = re.split(r"(?m)^FROM \S+ AS ", DOCKERFILE)
    (text,) = [each for each in stage if each.startswith(f"{target}\n")]
    found = re.search(r"(?m)^ENTRYPOINT (\[.*\])$", text)
    assert found is not None, target
    words: list[str] = json.loads(found[1])
    return words


def health_check() -> list[str]:
    """The health check command of a broker's container."""
    found = re.search(r"(?m)^HEALTHCHECK .* CMD (\[.*\])$", DOCKERFILE)
    assert found is not None
    words: list[str] = json.loads(found[1])
    return words
