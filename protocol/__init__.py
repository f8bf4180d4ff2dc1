"""The Kafka protocol: bytes to values and back. Pure: no I/O, no clock, no randomness, and nothing of ours is imported.

- `schema` and `messages`: every message as one typed class; `decode_compiler` and `encode_compiler` make flat functions
  of the declarations, with `wire_types` for what a field can be and `source_writer` for the source they generate.
- `frames`: length-prefixed frames out of a byte stream.
- `api_keys`, `errors`, `topic_partition`, `uuids`: the vocabulary of every other room.
- `records`, `compression`: record batches, which stand alone.

Decisions:

- A message is declared once, in typed Python, and compiled per version on first use. A class per version multiplies
  the code, classes made from data at run time are invisible to type checkers, and interpreting a schema is ten times
  slower.
- Structs nested in a message are nested classes: Kafka uses the same names for different structs in many messages.
- A tagged struct that is not sent is None here, where Kafka has an instance of defaults: three fewer objects for every
  partition fetched. What can be null and has no default in Kafka's definition is None, where Kafka has empty text.
- The compiled functions keep no account of where they are. When one fails, the line that failed tells the field, so
  that errors name message, version and field at no cost to what does not fail.
- Messages without records are decoded from a copy, since slicing bytes is faster than slicing memoryviews and nothing
  decoded can then refer to the receive buffer. Messages with records are decoded in place: records are slices.
- Counts are compared with the bytes left before anything is allocated, and the counts of a message together are bounded
  (`wire_types.MAX_ELEMENTS`): an element of one byte becomes an object of a hundred.
- Stricter than Kafka, on input no known client sends: text must be UTF-8, a null length is -1, the size of a tagged
  field is that of its value, nothing may follow a message but a request: librdkafka (2.16) writes four bytes for the
  one of a null array when it asks for the metadata of all topics, and Kafka ignores what is left.
"""
