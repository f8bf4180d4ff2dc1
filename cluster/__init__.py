"""What brokers agree on: decisions without sockets, sleeps or clocks. Time and messages come in, effects go out.

Decisions, each with its reason:

- **Agreement lives in a znode tree** in Kafka's own layout and JSON (`cluster.znodes`), behind the contract
  `cluster.coordination.contract.Coordination`. A Kafka user can read our tree with ZooKeeper's tools, and a real
  ensemble can take the place of the embedded tree without a change above the contract.
- **The embedded tree is three layers.** `znode_tree` is a pure state machine (zxid and time are arguments), so that
  its rules can be compared with a real ZooKeeper's; `embedded.DurableTree` adds the journal and is synchronous;
  `broker.coordination.embedded.EmbeddedCoordination` adds waiting (sessions, group commit), because asyncio belongs to
  the broker. The tree is one *file* in the first log directory: Apache Kafka refuses to start on a log directory that
  holds a directory it does not know, and a user must be able to go back.
- **Nothing is visible before it is durable.** A transaction is applied to the tree and its journal frame is fsynced
  before any read, watch or reply can see it. A journal that fails once is never trusted again (a retried fsync can
  report success for pages that the kernel dropped): every later call fails, and the broker stops.
- **One transaction, one fsync.** Transactions that arrive while the disk works share the next frame. As the next frame
  is written only after the previous one is synced, a broken frame with a whole one behind it is corruption, never a
  torn write: the first is refused with its position, the second truncated.
- **Controller decisions are pure functions** from a MetadataImage to znode operations and the new image parts
  (`cluster.controller`); the broker's ControllerService only carries them out. Every write is a transaction that also
  checks the version of /controller_epoch, so that a deposed controller can write nothing.
- **The MetadataImage is immutable and shares what did not change**: replacing one topic copies the dict of topics (a
  pointer each), never another topic's partitions.
- **Topic deletion is synchronous.** Kafka marks a topic, answers when the replicas are gone or time runs out, and lets
  the controller finish behind. Here the mark, the dropped replicas and the removed znodes all precede the answer, so
  that a topic of the same name can be created right after it; the mark lets a restart finish an interrupted deletion.
"""
