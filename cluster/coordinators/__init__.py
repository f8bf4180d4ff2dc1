"""What the coordinators of groups and of transactions share: results of events, deadlines, and which partition keeps a
key.
"""
