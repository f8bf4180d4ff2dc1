"""`python -m odradek NAME ...`: the same as the console script `odradek`."""

import sys

from odradek.cli import main

sys.exit(main(sys.argv[1:]))
