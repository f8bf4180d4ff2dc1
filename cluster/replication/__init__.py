"""A replica's role, in-sync replicas, leader epoch and high watermark."""
