"""The Kafka protocol: bytes to values and back. Pure: no I/O, no clock, no randomness, and nothing of ours is imported.

- `schema` and `messages`: every message as one typed class; encode and decode are compiled from the declaration.
- `frames`: length-prefixed frames out of a byte stream, and into one.
- `api_keys`, `errors`, `topic_partition`, `uuids`: the vocabulary of every other room.
- `records`, `compression`: record batches, which stand alone.
"""
