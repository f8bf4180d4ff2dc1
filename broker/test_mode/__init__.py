"""Brokers for tests: the launcher that forks them, and the control API that a broker has only then."""
