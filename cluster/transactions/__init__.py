"""Transaction coordinators: events go in; records to append, markers to write and replies come out. Free of clocks, I/O
and randomness.

The state of a transactional id changes only by replaying records appended to __transaction_state.
"""
