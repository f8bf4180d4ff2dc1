"""Group coordinators: events go in, records to append and replies come out. Free of clocks, I/O and randomness.

docs/decisions/cluster.md gives the reasons.
"""
