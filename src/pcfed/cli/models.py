"""``pcfed predict`` and ``pcfed export``: use the models of a training."""

from __future__ import annotations

import csv
import io
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from pcfed.cli.app import app, examples, say
from pcfed.data.tables import read_table
from pcfed.storage.atomic import write_atomically
from pcfed.training.exports import EXPORT_FORMATS, export
from pcfed.training.saved_run import open_models, open_module
from pcfed.training.setup import feature_matrix

Run = Annotated[Path, typer.Argument(help="The run directory of a finished training.")]


class Format(StrEnum):
    """The program that exported models are for."""

    npz = "npz"
    torch = "torch"
    sklearn = "sklearn"


@app.command(
    epilog=examples(
        "pcfed predict runs/train new.csv --agent harbour",
        "pcfed predict runs/train new.csv --agent average --probabilities --out p.csv",
    )
)
def predict(
    run: Run,
    data: Annotated[Path, typer.Argument(help="The rows to predict: .csv, .npz or .parquet.")],
    agent: Annotated[str, typer.Option(help="The agent whose model predicts, or average.")],
    out: Annotated[
        Path | None, typer.Option(help="CSV file for the predictions; printed by default.")
    ] = None,
    probabilities: Annotated[
        bool,
        typer.Option("--probabilities", help="Add a column with the probability of each label."),
    ] = False,
    module_folder: Annotated[
        Path | None,
        typer.Option(
            help="For torch models: the folder of the module's Python file, which is then run."
        ),
    ] = None,
) -> None:
    """Predict the rows of a file with an agent's own model, or with the shared model.

    The file must have the columns of the training, in any order; other columns are ignored.
    """
    trained = open_models(run)
    trained.model(agent)  # refuses an unknown agent before any file is read
    if out is not None and out.exists() and data.exists() and out.samefile(data):
        raise ValueError(f"predict: --out must not be the data file, got {out}; give another file.")
    X = feature_matrix(read_table(data), trained.columns)
    module = open_module(_directory(run), module_folder) if module_folder else None
    columns = {"prediction": trained.predict(agent, X, module=module).tolist()}
    if probabilities:
        values = trained.probabilities(agent, X, module=module).T.tolist()
        columns |= {f"p({label})": p for label, p in zip(trained.labels or (), values, strict=True)}
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    if out is None:
        sys.stdout.write(text.getvalue())
        return
    write_atomically(out, text.getvalue().encode())
    say(f"{len(X)} predictions by {agent} in {out}.")


@app.command(
    "export",
    epilog=examples(
        "pcfed export runs/train --to sklearn",
        "pcfed export runs/train --to torch --agent harbour --out harbour.pt",
    ),
)
def export_models(
    run: Run,
    to: Annotated[Format, typer.Option(help="The program that the models are for.")],
    agent: Annotated[
        str | None,
        typer.Option(help="The agent whose model is exported, or average; all by default."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="The file; by default export.npz, .pt or .json in the run directory."),
    ] = None,
) -> None:
    """Write the models for other programs.

    npz: named arrays. torch: parameters of an nn.Linear or of the trained module, which torch.load
    reads with weights_only=True. sklearn: JSON with coef_, intercept_ and classes_.
    """
    trained = open_models(run)
    path = _directory(run) / f"export{EXPORT_FORMATS[to].suffix}" if out is None else out
    export(trained, path, to, agent)
    say(f"The {'models' if agent is None else f'model of {agent}'} for {to.value}: {path}")


def _directory(run: Path) -> Path:
    """Return the run directory; the path may also be the one of its models.npz."""
    return run if run.is_dir() else run.parent
