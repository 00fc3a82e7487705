"""``pcfed predict`` and ``pcfed export``: use the models of a training."""

from __future__ import annotations

import csv
import io
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray
from rich.markup import escape

from pcfed.cli.app import app, errors, examples, say
from pcfed.data.tables import read_table
from pcfed.storage.atomic import write_atomically
from pcfed.training.exports import EXPORT_FORMATS, export
from pcfed.training.saved_run import open_models, open_module
from pcfed.training.trained_models import TrainedModels

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
    scores: Annotated[
        bool, typer.Option("--scores", help="Add columns with the raw outputs of the model.")
    ] = False,
    ids: Annotated[
        str | None, typer.Option(help="A column of the file that is copied, such as a number.")
    ] = None,
    module_folder: Annotated[
        Path | None,
        typer.Option(
            help="For torch models: the folder of the module's Python file, which is then run."
        ),
    ] = None,
) -> None:
    """Predict the rows of a file with an agent's own model, or with the shared model.

    The file must have the columns of the training, in any order; other columns are ignored. Rows
    with missing entries get no prediction, unless the training says what to take for them.
    """
    trained = open_models(run)
    trained.model(agent)  # refuses an unknown agent before any file is read
    if out is not None and out.exists() and data.exists() and out.samefile(data):
        raise ValueError(f"predict: --out must not be the data file, got {out}; give another file.")
    module = open_module(_directory(run), module_folder) if module_folder else None
    table = read_table(data, text=(ids,) if ids else (), decimal=trained.encoding.decimal)
    complete = trained.encoding.complete_rows(table)
    X = np.zeros((1, len(trained.encoding.features)))  # for the names of the columns
    if complete.any():
        X = trained.encoding.matrix(table.take(np.flatnonzero(complete)).with_numbers())
    values = _predictions(trained, agent, X, module, probabilities=probabilities, scores=scores)
    columns = {name: _spread(each, complete) for name, each in values.items()}
    if ids:
        columns = {ids: table.column(ids).tolist(), **columns}
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    skipped = int((~complete).sum())
    if skipped:
        first = table.location(~complete)
        errors.print(
            f"{skipped} of {table.rows} rows have missing entries and no prediction, the first in "
            f"{first} of {escape(table.where)}.",
            highlight=False,
            soft_wrap=True,
        )
    if out is None:
        sys.stdout.write(text.getvalue())
        return
    write_atomically(out, text.getvalue().encode())
    say(f"{table.rows - skipped} predictions by {agent} in {out}.")


def _predictions(
    trained: TrainedModels,
    agent: str,
    X: NDArray[np.float64],
    module: Any,
    *,
    probabilities: bool,
    scores: bool,
) -> dict[str, list[Any]]:
    """Return the columns of predictions, and perhaps of probabilities and scores."""
    columns = {"prediction": trained.predict(agent, X, module=module).tolist()}
    labels = trained.labels or ()
    if probabilities:
        found = trained.probabilities(agent, X, module=module).T.tolist()
        columns |= {f"p({label})": p for label, p in zip(labels, found, strict=True)}
    if scores:
        found = trained.scores(agent, X, module=module).reshape(len(X), -1).T.tolist()
        names = [f"score({label})" for label in labels] if len(found) == len(labels) else ["score"]
        columns |= dict(zip(names, found, strict=True))
    return columns


def _spread(values: list[Any], complete: NDArray[np.bool_]) -> list[Any]:
    """Return values for all rows, with empty entries for rows that are not complete."""
    rest = iter(values)
    return [next(rest) if is_complete else "" for is_complete in complete]


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
