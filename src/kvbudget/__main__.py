"""`python -m kvbudget`, and the console script `kvbudget`: Ctrl-C ends it quietly from the first import on."""

import sys

_INTERRUPTED = 130  # what shells expect after Ctrl-C


def main() -> int:
    """Run one command of `sys.argv`; returns its exit code."""
    try:
        from kvbudget.cli.interrupts import ending_at_once

        with ending_at_once():
            from kvbudget.cli.main import main as run
        return run()
    except KeyboardInterrupt:
        return _INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
