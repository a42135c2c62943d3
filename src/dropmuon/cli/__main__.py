"""`python -m dropmuon.cli`, where the script `dropmuon` is not installed."""

from __future__ import annotations

import sys

from dropmuon.cli import main

if __name__ == "__main__":
    sys.exit(main())
