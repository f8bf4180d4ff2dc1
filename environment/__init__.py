"""The machine around a server: time, randomness, threads, sockets, signals and logs. `contract` holds the interfaces,
`system` the real implementations.
"""
