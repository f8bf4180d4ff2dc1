"""Configuration: tables of keys, the .properties parser and the values a broker starts with.

Decisions:

- One declaration per key (`definitions.ConfigKey`): name, type, default, bounds, scope of dynamic change, our own
  sentence of documentation. Start-up, DescribeConfigs, AlterConfigs and the documents all read these tables, so a
  default is written once. Names, types, defaults and bounds are those of Apache Kafka 3.9.1 in ZooKeeper mode
  (classes `KafkaConfig`, `LogConfig`); `tests/parity` compares them with a running broker.
- The tables are plain tuples and the package imports nothing heavy, because it stands on the way to the first
  acknowledged record (`import config.broker_config` < 10 ms).
- Text stays text until it is needed: a `BrokerConfig` keeps what the file said beside the parsed value, because
  DescribeConfigs shows sources and synonyms in the operator's own words.
- A key that touches security or durability and has no implementation behind it is refused at start-up when it is set
  to anything but its default (`ConfigKey.refusal`): an operator who asked for TLS must never get an open broker.
- Keys of our own, unknown to Kafka, are few and kept apart (`keys_odradek`): a Kafka user sees them at a glance.
"""
