"""Seeds of whole clusters: their plans, their faults, and their invariants."""
