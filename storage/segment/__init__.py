"""One segment of a log: its files, its batches, its indexes, and which batches are known to be sound.

A `LogSegment` has `SegmentFiles` (four files and their names) and `CheckedBatches`, which only serve bytes that were
checked. `BatchReader` is the only reader of batches. The package does not know the log that a segment belongs to.
"""
