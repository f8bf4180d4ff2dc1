"""Who a client is, as values without sockets or clocks."""
