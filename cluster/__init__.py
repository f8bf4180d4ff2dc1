"""Decisions that brokers agree on, free of sockets, sleeps and clocks: time and messages go in, effects come out.

docs/decisions/cluster.md gives the reasons.
"""
