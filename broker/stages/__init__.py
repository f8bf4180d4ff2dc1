"""A start in stages: each is a complete object that the next one takes, and lets go of what it opened."""
