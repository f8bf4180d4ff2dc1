"""Runs the transaction coordinators of `cluster.transactions`: their time and log, sending their markers, and the check
whether a transaction includes a partition.
"""
