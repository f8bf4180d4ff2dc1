"""What brokers agree on: decisions without sockets, sleeps or clocks. Time and messages come in, effects go out.
docs/decisions/cluster.md tells why things are as they are.
"""
