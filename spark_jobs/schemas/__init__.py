"""Values in the format of a schema registry: Avro, or JSON with a schema, found by the id in each record."""
