"""``pcfed predict`` and ``pcfed export``: use the models of a training, here and elsewhere."""

from __future__ import annotations

import csv
import io
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from pcfed.cli.app import app, say
from pcfed.data.tables import read_table
from pcfed.storage.atomic import write_atomically
from pcfed.training.exports import EXPORT_FORMATS, export
from pcfed.training.saved_run import open_models, open_module
from pcfed.training.setup import feature_matrix

Run = Annotated[Path, typer.Argument(help="The folder of a finished training.")]


class Form(StrEnum):
    """What models are written for."""

    npz = "npz"
    torch = "torch"
    sklearn = "sklearn"


@app.command()
def predict(
    run: Run,
    data: Annotated[Path, typer.Argument(help="The rows: .csv, .npz or .parquet.")],
    agent: Annotated[str, typer.Option(help="Whose model, or average.")],
    out: Annotated[Path | None, typer.Option(help="A CSV file; else they are printed.")] = None,
    probabilities: Annotated[
        bool, typer.Option("--probabilities", help="A column for each label, too.")
    ] = False,
    module_folder: Annotated[
        Path | None, typer.Option(help="Of kind torch: run the module's file, which is here.")
    ] = None,
) -> None:
    """Predict the rows of a file with an agent's own model, or with the average model.

    The file must have the columns of the training, in any order; others are ignored.
    """
    given = open_models(run)
    given.model(agent)
    if out is not None and out.exists() and data.exists() and out.samefile(data):
        raise ValueError(f"predict: --out must not be the data, got {out}; give another file.")
    X = feature_matrix(read_table(data), given.columns)
    module = open_module(_folder(run), module_folder) if module_folder else None
    columns = {"prediction": given.predict(agent, X, module=module).tolist()}
    if probabilities:
        found = given.probabilities(agent, X, module=module).T.tolist()
        columns |= {f"p({label})": p for label, p in zip(given.labels or (), found, strict=True)}
    text = io.StringIO(newline="")
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(columns)
    lines.writerows(zip(*columns.values(), strict=True))
    if out is None:
        sys.stdout.write(text.getvalue())
        return
    write_atomically(out, text.getvalue().encode())
    say(f"{len(X)} predictions by {agent} in {out}.")


@app.command("export")
def export_models(
    run: Run,
    to: Annotated[Form, typer.Option(help="The form.")],
    agent: Annotated[
        str | None, typer.Option(help="Whose model, or average; all of them by default.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The file; export.npz, .pt or .json in the folder else.")
    ] = None,
) -> None:
    """Write the models for other programs.

    npz: arrays by name. torch: parameters for nn.Linear, or the module that was trained, which
    torch.load reads with weights_only=True. sklearn: JSON with coef_, intercept_ and classes_.
    """
    given = open_models(run)
    path = _folder(run) / f"export{EXPORT_FORMATS[to].suffix}" if out is None else out
    export(given, path, to, agent)
    say(f"The {'models' if agent is None else f'model of {agent}'} for {to.value}: {path}")


def _folder(run: Path) -> Path:
    """Return the folder of a training, of which a file may be given."""
    return run if run.is_dir() else run.parent
