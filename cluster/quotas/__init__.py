"""Client quotas: who has which limit, and how long who exceeds it has to wait."""
