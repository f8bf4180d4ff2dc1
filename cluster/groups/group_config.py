"""The settings of group coordinators. A broker without groups loads only this and `offset_events` of the package."""

from __future__ import annotations

from typing import Final

from protocol.value import Value

INT_MAX: Final = 0x7FFFFFFF


class GroupConfig(Value):
    """Kafka's group.* and offsets.* settings, with their names and units."""

    group_min_session_timeout_ms: int = 6000
    group_max_session_timeout_ms: int = 1_800_000
    group_initial_rebalance_delay_ms: int = 3000
    group_max_size: int = INT_MAX
    offset_metadata_max_bytes: int = 4096
    offsets_retention_ms: int = 10_080 * 60_000
