"""`python -m torchbayes`."""

import sys

from torchbayes.cli import main

sys.exit(main())
