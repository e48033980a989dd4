"""`python -m kvbudget` is the console script `kvbudget`."""

import sys

from kvbudget.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
