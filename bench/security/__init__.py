"""Costs of security: TLS beside Apache Kafka's, access control and quotas beside the same broker without them."""
