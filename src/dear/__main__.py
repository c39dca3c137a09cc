"""python -m dear, which is what torchrun starts."""

import sys

from dear.cli import main

sys.exit(main())
