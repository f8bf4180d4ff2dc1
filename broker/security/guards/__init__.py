"""The rights that each API requires, and its responses when they are missing. One module for each family of APIs, as in
`broker.handlers`; the handlers get only permitted items.
"""
