"""The common part of all coordinators of the broker: time, timers, a log, and shards that are loaded and unloaded as
leadership of an internal topic's partitions moves.
"""
