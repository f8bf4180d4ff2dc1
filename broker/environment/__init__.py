"""Interfaces to the operating system: time, randomness, threads and sockets. `contract` holds the interfaces, `system`
the real implementations, put together for a broker.
"""
