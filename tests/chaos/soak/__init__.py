"""A cluster of real processes under random faults and load, for as long as wanted; see scripts/soak."""
