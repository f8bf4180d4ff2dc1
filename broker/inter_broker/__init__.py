"""Connections to other brokers, and the requests over them: the controller's commands, and requests to the
controller.
"""
