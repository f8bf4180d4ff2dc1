"""Odradek, a Kafka-compatible broker: what a user's program may import.

The broker's own packages (`broker`, `storage`, `protocol`, ...) have names too generic for anybody's site-packages. In
a checkout they lie beside this package; in a wheel they lie in `odradek/_server/`, which only the processes that
`odradek.cli` starts put on their `sys.path`. A user's program never imports them: it runs brokers as processes.
"""

__version__ = "0.1.0"
