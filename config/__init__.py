"""Configuration: tables of keys, the .properties parser, and the configuration of a broker.

Names, types, defaults and bounds are those of Apache Kafka 3.9.1 in ZooKeeper mode (classes `KafkaConfig`,
`LogConfig`). docs/decisions/configuration.md gives the reasons.
"""
