"""The controller: what it believes (`context`), its decisions as pure functions of that (topics, elections, start-up),
and its commands to brokers. Nothing here waits, writes or draws a random number: chance comes in as a function, and
`broker.controller` carries the operations out and sends the commands.
"""
