"""Windows of time, and what is computed of the records in one."""
