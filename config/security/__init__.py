"""Who may connect, and who may do everything: what keys such as ssl.*, sasl.* and super.users ask for."""
