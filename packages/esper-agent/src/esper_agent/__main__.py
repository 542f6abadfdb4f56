"""`python -m esper_agent` is the command `esper-agent`."""

import sys

from esper_agent.cli import main

sys.exit(main())
