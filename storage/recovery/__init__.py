"""Opening logs: after a clean stop by looking at their ends, after any other by reading them; and looking for damage
later.
"""
