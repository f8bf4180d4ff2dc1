"""Record batches of message format v2: the header, the records, compression, validation and compaction."""
