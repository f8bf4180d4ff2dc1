"""One module per job, each runnable: `python -m spark_jobs.jobs.lake`, or `odradek spark-lake` from a wheel."""
