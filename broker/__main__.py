"""`python -m broker server.properties [--override key=value]*`: run a broker in the foreground."""

import time

LAUNCHED_S = time.monotonic()
"""Monotonic start time of this process, taken before the slow imports."""

import gc  # noqa: E402
import sys  # noqa: E402

# Imported modules are never freed. Collecting garbage during the imports, a hundred times, takes a tenth of their time.
# Freezing the modules spares each later collection a walk of 15 ms.
gc.disable()
from broker.main import main  # noqa: E402

gc.freeze()
gc.enable()
sys.exit(main(sys.argv[1:], launched_s=LAUNCHED_S))
