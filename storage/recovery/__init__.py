"""Opening logs: after a clean stop by reading their ends, otherwise by recovering them; and scrubbing them for damage
later.
"""
