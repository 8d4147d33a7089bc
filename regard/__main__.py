"""``python -m regard`` is ``regard``."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from regard.common.processors import limit
from regard.common.start import ending, own_process


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command. Training needs nothing that commands need besides: it works where typer is not installed."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    if arguments[:1] == ["train"]:
        from regard.tasks import main as train

        return train(arguments[1:])
    from regard.cli import main as run

    return run(arguments)


def command() -> int:
    """The command of this process."""
    own_process()
    limit()
    try:
        return main()
    except KeyboardInterrupt:  # while modules were imported
        return 130
    finally:
        ending()


if __name__ == "__main__":
    sys.exit(command())
