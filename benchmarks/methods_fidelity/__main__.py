"""Compare methods with the numbers of their papers or of their authors' code.

    python -m benchmarks.methods_fidelity [ditto fedrep pfedme perfedavg proxal composite]

It measures the methods that are named, or all, prints their rows, and replaces them in the tables
of ``benchmarks/METHODS_FIDELITY.md``; all other rows and the text stay as they are. Rows that the
tables do not have are only printed. ``pfedme`` and ``perfedavg`` train on MNIST, for a few minutes;
all others together take a minute.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path

from threadpoolctl import threadpool_limits

from .constrained import composite, proxal
from .personalized import ditto, fedrep, perfedavg, pfedme
from .table import Row, with_rows

TABLES = Path(__file__).parents[1] / "METHODS_FIDELITY.md"

METHODS: dict[str, Callable[[], Iterator[Row]]] = {
    "ditto": ditto,
    "fedrep": fedrep,
    "pfedme": pfedme,
    "perfedavg": perfedavg,
    "proxal": proxal,
    "composite": composite,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.methods_fidelity",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("methods", nargs="*", metavar="METHOD", help=", ".join(METHODS))
    methods = parser.parse_args().methods or list(METHODS)
    if unknown := set(methods) - set(METHODS):
        parser.error(f"valid methods are {', '.join(METHODS)}, not {', '.join(sorted(unknown))}")
    with threadpool_limits(1):
        for name in methods:
            rows = list(METHODS[name]())
            for row in rows:
                print(row.line, flush=True)
            # After every method, so that an interrupted run keeps what it has measured.
            TABLES.write_text(with_rows(TABLES.read_text("utf-8"), rows), "utf-8")


if __name__ == "__main__":
    main()
