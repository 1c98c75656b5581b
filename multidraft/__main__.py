"""The entry point of `multidraft` and `python -m multidraft`; it handles signals before it loads anything else."""

import signal
import sys

from multidraft import machine


def main() -> None:
    """Run the command line; Ctrl-C and SIGTERM end it at any moment with one line, and exit code 130 or 143."""
    machine.handle_signals()
    try:
        from multidraft.cli import main as commands

        commands.main()
    except KeyboardInterrupt:
        print("multidraft: stopped", file=sys.stderr)
        sys.exit(machine.exit_interrupted())
    finally:
        machine.handle_signals(signal.SIG_IGN)  # nothing is left to be stopped


if __name__ == "__main__":
    main()
