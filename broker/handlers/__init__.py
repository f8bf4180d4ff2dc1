"""One file per API family. A handler translates: request -> the owner of the state -> response.

Handlers hold no state. They turn `ApiError` into the error code of the item it concerns, at one place per API; any
other exception is a bug and closes the connection with a traceback in the log. Each class takes the owners it needs
as constructor arguments, so that a line of code can reach only what its API is about.
"""
