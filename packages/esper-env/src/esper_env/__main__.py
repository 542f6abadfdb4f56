"""`python -m esper_env` is the command `esper-env`."""

import sys

from esper_env.cli import main

sys.exit(main())
