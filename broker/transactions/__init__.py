"""Runs the transaction coordinators of `cluster.transactions`: their time and their log, the markers that they decide
on, and the question of a partition's leader whether a transaction has it.
"""
