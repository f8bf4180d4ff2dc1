"""The replicas on this broker: their roles, waiting requests, fetch sessions, and moves between directories."""
