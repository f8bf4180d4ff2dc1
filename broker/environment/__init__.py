"""What the process asks of the machine, as interfaces (`contract`) and as their implementation on it (`system`): time,
randomness, threads and sockets. `broker.this_machine` puts the real ones together.
"""
