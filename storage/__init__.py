"""One replica's log on one disk: synchronous, single-threaded per log, and without a clock (`now_ms` is an argument).

Formats are Apache Kafka's, to the byte. The packages, each importing only those before it: `io` (the disk), `directory`
(a log directory and what it holds besides logs), `segment` (batches and indexes), `log` (segments, producers, epochs),
then `recovery`, `compaction` and `relocation` (operations on logs), and `log_manager`, which owns them all. The reasons
are in docs/decisions/storage.md.
"""
