"""Parts of the jobs that copy records: ranges, target cluster, map of offsets, records of a lake."""
