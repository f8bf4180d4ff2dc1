"""Fuzzing of everything that a peer can send before it is authenticated, and of everything that authenticates it."""
