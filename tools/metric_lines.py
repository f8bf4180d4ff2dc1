"""The table that the performance tools print with --print-metrics (Kafka class `ToolsUtils`)."""

from __future__ import annotations

from collections.abc import Mapping


def print_metrics(metrics: Mapping[str, float]) -> None:
    """Print metrics by name (`group:metric:{tags}`), sorted. Of Kafka's metrics, those that are counted here exist."""
    width = max(map(len, metrics))
    print(f"\n{'Metric Name':{width}}   Value")
    for name, value in sorted(metrics.items()):
        print(f"{name:{width}} : {value:.3f}")
