"""The same requests to Apache Kafka and to this broker. A package, so that its shared fixtures end with its tests."""
