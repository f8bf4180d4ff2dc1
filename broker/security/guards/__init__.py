"""The rules of each API: what its client must be allowed to do, and how it is told that it is not. One module for each
family of APIs, as in `broker.handlers`, whose handlers then see only what is allowed.
"""
