"""PySpark jobs on a Kafka-compatible broker: clients only, imported by nothing of the broker.

`common` holds what every job needs (session, source, options, progress); each job in `jobs` has a pure
`transform(df, config) -> DataFrame`, a `start(spark, config)` and a `main(argv)`. Importing one runs no Spark action.

Decisions:
- The connector's version is PySpark's own (`pyspark.__version__`): the two are released together, so it is never
  written twice.
- Jobs raise the connector's fetch sizes (`source.FETCH_OPTIONS`): with Spark's defaults each poll of 500 records costs
  two ListOffsets requests, and reading takes two to four times as long.
"""
