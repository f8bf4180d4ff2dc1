"""The common part of all coordinators' decisions: results of events, deadlines, and which partition keeps a key."""
