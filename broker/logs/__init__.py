"""Work on logs other than appends and reads: loading, flushing, checkpoints, retention, compaction, scrubbing, and the
handling of full and failed disks. Decisions are made on the event loop; threads or a process wait for the disk.
"""
