"""One replica's log in use: appends, reads, flushes, truncation and retention over its segments, and its producers and
leader epochs.

`UnifiedLog` is made of parts that own one state each (docs/decisions/storage.md): `LocalLog` the segments and offsets,
`LogDurability` the recovery point, `LogProducers` the producers, `LogEpochs` the leader epochs.
"""
