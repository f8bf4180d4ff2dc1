"""The replicas on this broker: which there are, who waits for them, fetch sessions, and moves between directories."""
