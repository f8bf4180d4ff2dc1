"""Interfaces to the operating system: time, randomness, threads and sockets. `contract` holds the interfaces, `system`
the real implementations, and `broker.command_line` combines them.
"""
