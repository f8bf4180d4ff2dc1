"""Transactional clients of the simulation, their checks, and planted bugs of transactions."""
