"""The machine as the process sees it: time, randomness, threads and sockets. `contract` holds the interfaces, `system`
their implementation, and `broker.command_line` puts the real ones together.
"""
