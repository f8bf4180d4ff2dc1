"""Compaction of one log: choosing what to clean, cleaning it, and replacing the source segments with the result."""
