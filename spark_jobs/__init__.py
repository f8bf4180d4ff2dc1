"""PySpark jobs on a Kafka-compatible broker. They are clients only: the broker imports none of this.

`common` holds what every job needs (session, source, options, progress); each job in `jobs` has a pure
`transform(df, config) -> DataFrame`, a `start(spark, config)` and a `main(argv)`. Importing one runs no Spark action.
docs/decisions/clients.md gives the reasons.
"""
