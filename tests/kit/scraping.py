"""The metrics of a broker, read over HTTP as Prometheus reads them."""

from __future__ import annotations

import urllib.request

from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families


def scraped_families(port: int) -> list[Metric]:
    """All metrics that the broker serves."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as response:
        return list(text_string_to_metric_families(response.read().decode()))


def scrape(port: int) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Every sample by (name, sorted labels)."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in scraped_families(port)
        for sample in family.samples
    }
