"""Client identities and access control, as values without sockets or clocks."""
