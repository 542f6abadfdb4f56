"""The command `esper-agent`, also as `python -m esper_agent`."""

import signal
import sys


def main() -> int:
    """Import the rest, which takes a while and ends without a traceback on Ctrl-C, and run the command."""
    previous = signal.signal(signal.SIGINT, signal.SIG_DFL)
    from esper_agent import cli  # noqa: PLC0415

    signal.signal(signal.SIGINT, previous)
    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
