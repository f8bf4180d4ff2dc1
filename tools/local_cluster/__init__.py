"""A cluster on this machine: brokers and ZooKeeper as processes, kept in one directory (`odradek cluster start`).

The command starts and signals processes and is otherwise a client of the brokers, as every tool is.
"""
