"""The work that logs need beside appends and reads: loading, flushing, checkpoints, retention, compaction, scrubbing,
and what follows from a full or failing disk. Decisions are made on the event loop; threads or a process wait for the
disk.
"""
