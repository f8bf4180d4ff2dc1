"""A log directory: its lock, identity, checkpoints, clean-shutdown marker and space reserve, and the directories of
partitions in it.
"""
