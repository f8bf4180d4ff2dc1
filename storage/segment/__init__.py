"""One segment of a log: its files, the batches in them, the indexes beside them, and what is known of their soundness.

A `LogSegment` has `SegmentFiles` (four files and their names) and `CheckedBatches`, which serve no byte that was not
checked. `BatchReader` is the only reader of batches. Nothing here knows of the log that the segment is a part of.
"""
