"""The Kafka protocol: bytes to values and back. Pure: no I/O, no clock, no randomness.

`wire` compiles declared messages and splits a byte stream into frames, `messages` declares every message, `records`
reads and writes record batches and depends on nothing else. `api_keys`, `errors`, `topic_partition` and `uuids` are
used by all packages. docs/decisions/protocol.md gives the reasons.
"""
