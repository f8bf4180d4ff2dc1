"""`python -m broker server.properties [--override key=value]*`: run a broker in the foreground."""

import sys

from broker.main import main

sys.exit(main(sys.argv[1:]))
