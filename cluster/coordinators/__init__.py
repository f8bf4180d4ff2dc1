"""Code shared by all coordinators: results of events, deadlines, and the partition of a key."""
