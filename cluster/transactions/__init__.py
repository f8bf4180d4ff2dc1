"""Transaction coordinators: an event comes in, records to append, markers to write and replies come out. No clock, no
I/O, no randomness.

The state of a transactional id changes only by replay of what was appended to __transaction_state.
"""
