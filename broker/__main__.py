"""`python -m broker server.properties [--override key=value]*`: run a broker in the foreground."""

import sys

from broker.launch_time import LAUNCHED_S  # isort: skip  before everything that takes time to import

from broker.main import main

sys.exit(main(sys.argv[1:], launched_s=LAUNCHED_S))
