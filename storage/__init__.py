"""One replica's log on one disk. Synchronous, single-threaded per log, and without a clock: `now_ms` is an argument.

Formats are Apache Kafka's, to the byte: its own tools and brokers open what is written here, and directories that
they wrote are opened here. Message format v2 only: a partition with older records is refused with the name of the
file.

Decisions, with their reasons:

- Everything on disk goes through `file_system.FileSystem`. That seam is what lets tests fail, tear or lose any
  single call.
- Appends are one `pwritev` of the batch as it came from the network, offsets patched in place. Nothing is copied,
  no record is looked at unless its meaning needs it (`log_validator`).
- Indexes are appended to, never mapped and never preallocated: a write into a mapped hole of a full disk is a
  SIGBUS, and a preallocated tail has to be told from data after each crash. The newest entries wait in memory;
  recovery rebuilds them.
- What an idle partition does not need is not in memory: file handles, indexes, producer state and leader epochs
  are opened on first use, descriptors are shared under a limit, and given back where none is left for a file: that is
  no failure of the disk. After a clean stop a log costs the list of its files
  and two small reads at its end (0.14 ms), whatever it holds; becoming leader reads nothing, and closing a log that
  nobody changed since makes no call at all (`LogState.is_as_loaded`).
- Logs are loaded by as many threads as their owner lets into `log_loading.DirectoryLoad`. Each is loaded with a
  stand-in for its directory, and what is to be told to the directory is told by the owner, in the order of the logs: so
  the outcome depends on no thread's speed. Threads overlap what the disk makes them wait for: of logs that were not in
  the page cache, four recover twice as many bytes a second as one. Of logs that were, they gain nothing: large batches
  are as fast as memory is, and small ones wait for the interpreter. Hence a loop without an object for each batch
  (`recovery`), which takes four to eight times as many batches a second, and gathers the producers on the way.
- Logs are closed in shares, a thread for each: to create a snapshot and to fsync what belongs to it is mostly to wait
  for the file system's journal. Where others used the disk, 4,000 logs took 2.4 s in eight shares, and 3.7 s when they
  were closed by one thread and flushed by four.
- Recovery writes an index only where it differs: after a crash most are right, and ext4 writes out at once what is
  renamed onto another file, 20,000 times at a start with 10,000 partitions.
- An error while writing or in fsync takes the log directory offline at once (after a failed fsync, the kernel may
  report success next time although the pages are gone). The exception is a full disk, which leaves the log as it
  was.
- Creating a log or writing a leader epoch does not fsync; the flush that advances the recovery point does, files
  first, then directories. Whatever is not yet covered by a recovery point is rebuilt from the batches themselves.
  That goes for what seems to be there, too: after a crash no producer snapshot above the recovery point is believed,
  and no leader epoch that no batch has. A truncation may have removed them, and a power cut brought them back.
- A segment begins where the one before ended, even if the leader's offsets skip some. So recovery can tell a sealed
  segment that a power cut shortened by whole batches from one that is complete; it cuts there, as at a torn batch.
- Only compaction leaves such gaps, and it goes no further than the recovery point, which is checkpointed before the
  first segment is replaced: recovery does not look there. The end of a copy may have one, too; it does not take the
  place of its log before the same is done.
- Kafka's logs do have gaps above the recovery point: its cleaner does not look at that, and a follower's segment begins
  with its first batch. Kafka's recovery believes every gap, and so does ours in what Kafka wrote of a topic that may be
  compacted: there it could only choose between keeping records behind lost ones, which nobody had flushed, and dropping
  acknowledged ones. Who wrote is told by an entry among the recovery points that is no partition's
  (`checkpoints.WHOLE_SEGMENTS`). Kafka leaves it out with its first checkpoint, and we with an orderly stop. What is
  left is a Kafka broker that starts after an unclean stop of ours and is killed within its first half minute.
- A base offset is not covered by a batch's CRC. Recovery therefore also demands that offsets ascend and stay inside
  the segment, and the offset index is checked against the headers it points at and rebuilt when it lies.
- A segment that reaches further than an index can say (KAFKA-6264) is split where Kafka splits it, by recovery and by
  the cleaner (`segment_split`). That an offset is so far off counts only if what is known besides does not speak
  against it: one flipped bit looks the same.
- What this process did not write itself is checked before it is first given to anybody (`verification`), each byte once
  in the life of a segment's object. Kafka's broker sends what the disk gives it, and leaves it to the consumer to find
  out; a follower or the cleaner would take it over. Only a thread that may wait checks: a read on the event loop of
  what was not checked yet is a cold read, and checking brings it into memory for the send that follows.
- Damage is a range of bytes and of offsets. It is refused, told once with file and byte position, and passed over by
  whatever walks a log (indexes, epochs, producer state); only a search by timestamp that would have to cross it fails,
  as the answer may have been in it. What lies behind it is found by the size in the header, or else byte by byte.
- Fields that no CRC covers are judged by the neighbours, and by nothing else: what looks odd but contradicts nobody
  (a gap, a lower leader epoch that stays) occurs in healthy logs, and refusing sound records is worse.
- Below the recovery point nothing can be torn, so recovery cuts nothing off there: the log goes on behind the damage
  and keeps its end. Kafka's drops all that follows the first bad batch of the segment that holds the recovery point.
- A scrub (`scrub`) reads sealed segments again and again, whatever was checked before. It keeps its position in memory:
  to begin again costs time, and to write it down would cost writes for ever.
- Old segments go in two steps: the log start moves and is checkpointed, then the files are renamed. A power cut may
  bring back any of them, and what is missing between them would be taken for a loss; so a start first drops what lies
  below the checkpointed log start. A checkpoint also forgets a deleted log before another of its name is made.
- A round over all logs makes no object for each of them: 10,000 tuples have the garbage collector go over everything,
  which holds the event loop ten times longer than the round itself (`log_checkpoints`).
- Whatever waits for an fsync or removes files is a task: made by the thread that owns the logs, run by any, completed
  by the owner (`FlushTask`, `CheckpointTask`, `DeletionTask`). A log that is read may be read by any thread.
- flush.messages=N means: at any moment fewer than N records that were acknowledged or shown are not on disk
  (`LogState.flush_bound`). Kafka flushes inside the append and holds the log for that long; here the append returns at
  once, so the bound is what makes the same promise. For N=1 it is the end of what is on disk.
- A cut of the log's end (`UnifiedLog.truncate_to`) is on disk before anything is written behind it, else a power cut
  could bring back what was cut off behind what took its place. The fsync belongs to the next flush, which runs on a
  thread; only an append that comes earlier waits for it. A process that dies in between leaves a marker for the next
  one. It is a name without content, which no power cut can leave half done; and until it is gone, nothing above what it
  says is compacted. Segments behind the cut are renamed newest first, and that is fsynced at once: a hole in the middle
  of what was flushed is the one thing that recovery, which trusts its recovery point, could not see.
- Compaction is a function over paths (`log_cleaner.clean`), which any process can call: it writes `.cleaned` files and
  changes nothing else. The owner of the log compares what was cleaned with what is there now and then only renames
  (`segment_replacement`): nothing is locked while the cleaner works, retention and truncation go on, and a result
  that no longer fits is thrown away.
- A segment of which every batch stays is not written again (Kafka writes all of them each time). What never changes
  keeps its file, and what is known of it: that it was checked, and that it is in the page cache.
- The cleaner goes no further than the recovery point, which Kafka's does not look at: a power cut could take the newer
  value of a key away after the older one was dropped. It checks every CRC, which Kafka's does not either: what is
  rewritten gets a new one, and a flipped bit would come out of it looking sound.
- How transactions ended, the cleaner learns from their markers and not from `.txnindex`, which may be missing; it looks
  for them only where transactional batches are. The index it writes is Kafka's.
- A log that was ever cleaned has an entry in cleaner-offset-checkpoint, made before the first replacement. Where the
  recovery points are not ours, or lost, recovery goes by it: gaps at the ends of segments are no loss then, even if the
  topic is no longer compacted.
- Old segments get `.<number>.deleted`: cleaned again within file.delete.delay.ms, a segment would otherwise take the
  name of the one before it, and a reader whose descriptor was closed in between would open the wrong file.
- A move to another log directory ends with two renames that no file system can do as one. The new directory gets the
  name first, and the old one keeps it until all it holds is on stable storage in the new one (`future_logs`). A crash
  in between leaves two directories of one name; the one that goes further is right. Kafka refuses to start then.
  The checkpoints of both know the log until the old one is gone, high watermark included.
- A future log is copied by whole batches, as a follower would, and not by copying files: so the log may be appended to,
  truncated and expired meanwhile, and everything copied has had its CRC checked. It is not compacted meanwhile, as in
  Kafka: the copy could have a value whose tombstone is gone when its turn comes. A copy that lay in an offline
  directory while the log was compacted begins again; Kafka's goes on.
- Checkpoints know logs by name alone, so a log must not get the name of a deleted one that a checkpoint still knows:
  after a crash it would begin at the other one's log start. They are rewritten after each deletion; where a full disk
  refuses that, topics of that name are refused there, too, until it was done (`LogDirectory.stale_checkpoint`).
- A disk that fills up is kept from the clients first (`disk_reserve`): what the broker itself has to write, and what
  gives room back, needs some room. 64 MiB is the default: a rewritten coordination journal, a round of checkpoints and
  snapshots and some hours of committed offsets fit into it many times. Of a small disk, as a container's /dev/shm is,
  it is a tenth. The disk is asked once a second, and every append is counted in between, by one subtraction.
- A full disk takes no directory offline: not an append, a roll, an index entry, a checkpoint (the old one stays, and is
  written by the next round), nor the marker of a clean stop. Only a failed fsync does, as after any other error.
- Reads give positions in files, not bytes. They end on batch boundaries (Kafka cuts a batch in two, and clients
  throw the half away), and the log remembers where recent reads and appends ended, so that a consumer in sequence
  costs no search.
"""
