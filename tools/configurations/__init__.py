"""Parts of kafka-configs: quotas, and users of SCRAM."""
