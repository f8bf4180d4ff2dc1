"""Fuzzing of all that a peer can send before it is authenticated, and of all that is read to judge who it is."""
