"""Tables that the job `lake` writes."""
