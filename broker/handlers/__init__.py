"""The request handlers: one module for each family of APIs. A handler turns a request into calls of the owner of the
state, and the result into a response.

State belongs to the owners, which are passed to the handler's constructor; a handler keeps at most the work of one
request. It turns an `ApiError` into the error code of the affected item. Any other exception is a bug: it is logged
with its traceback, and the connection is closed.
"""
