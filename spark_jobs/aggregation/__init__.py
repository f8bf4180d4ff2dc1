"""Time windows and the aggregates computed in them."""
