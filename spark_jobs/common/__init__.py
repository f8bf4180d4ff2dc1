"""What the jobs share: session, source, value schemas, options, files beside a table, progress."""
