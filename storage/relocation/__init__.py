"""Moving a log to another log directory while it is in use (KIP-113)."""
