"""The entry point of the command line, which needs more packages than the core."""

from __future__ import annotations

import sys

from pcfed.errors import install_command


def main() -> None:
    """Run the command line, or print which extra to install."""
    try:
        from pcfed.cli import load

        run = load()
    except ModuleNotFoundError as missing:
        sys.stderr.write(
            f"pcfed: the command line needs the package {missing.name!r}, which is not installed; "
            f"run {install_command('app')}.\n"
        )
        sys.exit(2)
    run()


if __name__ == "__main__":
    main()
