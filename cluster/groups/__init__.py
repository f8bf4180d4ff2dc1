"""Group coordinators: an event comes in, records to append and replies come out. No clock, no I/O, no randomness.

docs/decisions/cluster.md gives the reasons.
"""
