"""``python -m regard`` is ``regard``."""

from __future__ import annotations

import sys

from regard.cli import main
from regard.common.processors import limit
from regard.common.start import own_process, quick_exit


def command() -> int:
    """The command of this process."""
    own_process()
    limit()
    try:
        return main()
    finally:
        quick_exit()


if __name__ == "__main__":
    sys.exit(command())
