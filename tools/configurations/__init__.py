"""Parts of kafka-configs: quotas and SCRAM users."""
