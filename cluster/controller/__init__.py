"""The controller: its view of the cluster (`context`), pure decisions on it (topics, elections, start-up), and its
commands to brokers. The package does not wait, write or draw random numbers, which come in as a function.
`broker.controller` executes the operations and sends the commands.
"""
