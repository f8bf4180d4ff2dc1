"""Runs the group coordinators of `cluster.groups`: their time, their timers and their log."""
