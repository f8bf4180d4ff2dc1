"""The table of --print-metrics (Kafka class `ToolsUtils`)."""

from __future__ import annotations

from collections.abc import Mapping


def print_metrics(metrics: Mapping[str, float]) -> None:
    """Print metrics by name, `group:name:{tag=value}`, sorted, in two columns."""
    width = max(map(len, metrics), default=0)
    print(f"\n{'Metric Name':{width}}   Value")
    for name, value in sorted(metrics.items()):
        print(f"{name:{width}} : {value:.3f}")
