"""Parts of the jobs that copy records: ranges, target cluster, offset map, records of a lake."""
