"""Seeds of whole clusters: their plans, their faults, and what must hold at every moment."""
