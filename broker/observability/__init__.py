"""The reports to the operator: log lines, metrics, and a line for each request."""
