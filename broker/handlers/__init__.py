"""The handlers: one module for each family of APIs. A handler turns a request into calls of the state's owner, and the
result into a response.

State belongs to the owners, which a handler takes as constructor arguments; a handler keeps at most the work of one
request. It turns an `ApiError` into the error code of the item concerned. Any other exception is a bug: it is logged
with its traceback, and the connection is closed.
"""
