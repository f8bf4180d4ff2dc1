"""What the broker knows of the cluster and answers from memory: configurations in force, internal topics, and
producer ids.
"""
