"""Client quotas: the limits, and how long a client over its limit has to wait."""
