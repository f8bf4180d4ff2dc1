"""The outcome of an append (Kafka class `LogAppendInfo`)."""

from __future__ import annotations

from protocol.value import Value


class LogAppendInfo(Value, frozen=False):
    """The place of an append in the log. `log_append_time_ms` is -1 unless the topic uses LogAppendTime.

    Of a duplicate, the offsets (and time) are those of the batch that was appended first.
    """

    first_offset: int
    last_offset: int
    log_append_time_ms: int
    log_start_offset: int
    duplicate: bool = False
    is_acknowledged: bool = True
    """Whether the append may be acknowledged. Set by the `Partition`, which knows the conditions."""
