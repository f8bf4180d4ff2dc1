"""Connections between brokers, the commands of the controller over them, and requests to it."""
