"""The events of the verifiable tools: one JSON object a line, in Kafka's order of fields, for scripts to follow."""

from __future__ import annotations

import json

from tools.common import now_ms


def print_event(name: str, **fields: object) -> None:
    """Print an event that happens now, and let it out at once: whoever kills the tool must not lose what it said."""
    event = {"timestamp": now_ms(), "name": name, **fields}
    print(json.dumps(event, ensure_ascii=False, separators=(",", ":")), flush=True)
