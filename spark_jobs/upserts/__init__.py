"""Row changes, and the tables built from them."""
