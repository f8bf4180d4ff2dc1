"""Tables in formats that keep versions: Delta Lake and Apache Iceberg."""
