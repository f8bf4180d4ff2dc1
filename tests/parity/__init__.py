"""The same requests to Apache Kafka and to this broker. A package, so that what its tests share ends with them."""
