"""The entry point of `multidraft` and `python -m multidraft`: signals are heard before anything else is loaded."""

import signal
import sys

from multidraft import machine


def main() -> None:
    """Run the command line; Ctrl-C and a polite kill end it with one line and code 130, at any moment."""
    machine.hear_signals()
    try:
        from multidraft.cli import main as commands

        commands.main()
    except KeyboardInterrupt:
        print("multidraft: stopped", file=sys.stderr)
        sys.exit(machine.STOPPED)
    finally:
        machine.hear_signals(signal.SIG_IGN)  # all is done, and nothing is left to be stopped


if __name__ == "__main__":
    main()
