"""Decisions that brokers agree on, made without sockets, sleeps or clocks. Time and messages come in, effects go out.
docs/decisions/cluster.md gives the reasons.
"""
