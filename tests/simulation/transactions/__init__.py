"""Transactional clients of the simulation, what is checked of them, and planted bugs of transactions."""
