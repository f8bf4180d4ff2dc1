"""Tables in formats with versions: Delta Lake and Apache Iceberg."""
