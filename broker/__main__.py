"""`python -m broker server.properties [--override key=value]*`: run a broker in the foreground."""

import time

LAUNCHED_S = time.monotonic()
"""When this process began its own work, before everything that takes time to import, on the monotonic clock."""

import gc  # noqa: E402
import sys  # noqa: E402

# Modules stay for good: looking for garbage among them, a hundred times, is a tenth of the time that importing takes.
# Frozen, they are left out of the collections that follow: each would walk all of them once more, for 15 ms.
gc.disable()
from broker.main import main  # noqa: E402

gc.freeze()
gc.enable()
sys.exit(main(sys.argv[1:], launched_s=LAUNCHED_S))
