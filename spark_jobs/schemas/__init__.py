"""Values in the format of a schema registry: Avro, or JSON with a schema, by the schema id in each record."""
