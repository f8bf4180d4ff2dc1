"""Odradek, a Kafka-compatible broker: the package that user programs may import.

The broker's own packages (`broker`, `storage`, `protocol`, ...) have names that are too generic for site-packages. In a
checkout they are next to this package. A wheel has them in `odradek/_server/`, and only the processes that
`odradek.cli` starts put that on their `sys.path`. User programs never import them: they run brokers as processes.
"""

__version__ = "0.1.0"
