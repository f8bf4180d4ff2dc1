"""Costs of security: TLS compared with Apache Kafka's; access control and quotas with the same broker without."""
