"""What the broker tells its operator: log lines, metrics, and a line for each request."""
