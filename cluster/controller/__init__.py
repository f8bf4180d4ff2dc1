"""The controller: its view of the cluster (`context`), pure decisions on it (topics, elections, start-up), and its
commands to brokers. Nothing here waits, writes or draws random numbers, which come in as a function.
`broker.controller` executes the operations and sends the commands.
"""
