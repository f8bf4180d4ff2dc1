"""Changes of rows, and the tables that are made of them."""
