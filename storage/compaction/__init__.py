"""Compaction of one log: what can be cleaned, what is left of it, and putting the result in place of its sources."""
