"""`python -m broker server.properties [--override key=value]*`: run a broker in the foreground."""

import gc
import sys

from broker.launch_time import LAUNCHED_S  # isort: skip  before everything that takes time to import

# Modules stay for good: looking for garbage among them, a hundred times, is a tenth of the time that importing takes.
# Frozen, they are left out of the collections that follow: each would walk all of them once more, for 15 ms.
gc.disable()
from broker.main import main  # noqa: E402

gc.freeze()
gc.enable()
sys.exit(main(sys.argv[1:], launched_s=LAUNCHED_S))
