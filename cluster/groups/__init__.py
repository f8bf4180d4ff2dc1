"""Group coordinators: an event comes in, records to append and replies come out. No clock, no I/O, no randomness.

Decisions, each with its reason:

- **One shard per partition of __consumer_offsets**, because that is what moves between brokers as a whole. A shard is
  built from the partition's log when this broker begins to lead it, and thrown away when it resigns.
- **Two layers, one of them durable.** `DurableGroups` is what the log says: the last group metadata record and the
  committed offsets. It changes in one place only, `replay`, whether the record comes from the log of a new leader or
  was just committed by this one; so what a crash leaves is what the next leader sees. `Group` is the membership of the
  moment: who waits in JoinGroup or SyncGroup, deadlines, pending members, a rebalance under way. Kafka writes no record
  for any of that, and neither do we; a new leader starts from the last stable generation and members join again.
- **An event comes in, a `Result` comes out** (Kafka's CoordinatorResult): records to append, and the response. Events
  are in the coordinator's own terms; handlers translate. A response that rests on records is a `Reply`, set once they
  are committed. A failed append leaves no trace in the durable layer, and the membership it was about is put back.
- **Loading compacts.** `GroupLoader` keeps the last value of each key as bytes and decodes what is left in the end, so
  that time and memory go with what is live, not with how often it was committed.
- **Deadlines are data.** Each is one number on its owner; a heap holds at most one entry per deadline, and a heartbeat
  only moves the number. The driver asks for the next one and calls `expire`.
- **Session time is monotonic, record time is the wall clock's.** A wall clock that jumps must not expire members.
- **Differences from Kafka's coordinator (kafka.coordinator.group)**, all of them where Kafka's answer is an accident:
  a request that the same member repeats while its first waits is answered (Kafka forgets the first); a second
  assignment from the leader while the first is being written waits for the first (Kafka writes both and then serves the
  first until failover, the second after); offsets disappear when their tombstones are committed, not before; ties are
  broken by order of joining instead of hash order.
"""
