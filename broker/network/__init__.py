"""Connections: bytes in, frames to the dispatcher, replies out in the order of the requests.

docs/decisions/broker.md gives the reasons.
"""
