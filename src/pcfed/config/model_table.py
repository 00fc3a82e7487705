"""What is trained, as ``[model]`` says: a linear model, or a PyTorch module of your own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pcfed.config.section import Section
from pcfed.errors import short_repr

MODELS = ("softmax", "logistic", "least-squares")
"""The linear models."""

TORCH = "torch"
LOSSES = ("cross-entropy", "mse")
"""What a PyTorch module may minimise: of labels, of numbers."""


@dataclass(frozen=True)
class Model:
    """What is trained: ``[model]``.

    Attributes
    ----------
    kind : {"softmax", "logistic", "least-squares", "torch"}
        The loss, or that it is a module.
    intercept : bool
        Whether the model has one; constraints leave it alone.
    l2 : float
        Weight of the l2 term, on the coefficients only.
    module : str or None
        Of a module: the file beside the configuration and what in it makes the module, such as
        ``"my_models:Net"``.
    loss : {"cross-entropy", "mse"} or None
        Of a module: what it minimises.
    """

    kind: str
    intercept: bool = False
    l2: float = 0.0
    module: str | None = None
    loss: str | None = None

    @property
    def predicts(self) -> str:
        """What there is to predict, as `pcfed.training.targets.read_targets` calls it."""
        return self.loss or self.kind

    @property
    def file(self) -> Path | None:
        """The file of a module, relative to the folder of the configuration."""
        if self.module is None:
            return None
        return Path(*self.module.partition(":")[0].split(".")).with_suffix(".py")

    def resolved(self) -> dict[str, object]:
        """Return its table with all defaults."""
        keys = ("kind", "module", "loss") if self.kind == TORCH else ("kind", "intercept", "l2")
        return {key: getattr(self, key) for key in keys}

    def check(self, where: str, *, standardize: bool, gap: float | None) -> None:
        """Refuse what is only there for linear models."""
        if self.kind == TORCH and standardize:
            raise ValueError(
                f"{where}: data.standardize must be false for modules, got true; bring columns to "
                "one size in the first layer of the module."
            )
        if self.kind == TORCH and gap is not None:
            raise ValueError(
                f"{where}: training.gap must be left out for modules, got {gap}; there is no "
                "certificate for losses that are not convex."
            )


def read_model(where: str, table: object) -> Model:
    """Return the model that ``[model]`` describes.

    Parameters
    ----------
    where : str
        What messages call the file.
    table : object
        What the file has there.

    Examples
    --------
    >>> read_model("train.toml", {"kind": "softmax"}).resolved()
    {'kind': 'softmax', 'intercept': False, 'l2': 0.0}
    """
    section = Section(where, "model", table, ("kind", "intercept", "l2", "module", "loss"))
    kind = section.choice("kind", (*MODELS, TORCH))
    if kind != TORCH:
        section = Section(where, "model", table, ("kind", "intercept", "l2"))
        intercept = section.flag("intercept", False)
        return Model(kind, intercept, section.number("l2", 0.0, zero=True))
    section = Section(where, "model", table, ("kind", "module", "loss"))
    module = section.text("module")
    if module is None:
        raise ValueError(
            f'{where}: model.module is missing; give one such as "my_models:Net", for Net in '
            "my_models.py beside this file."
        )
    names = module.replace(":", ".", 1).split(".")
    if module.count(":") != 1 or not all(name.isidentifier() for name in names):
        raise ValueError(
            f'{where}: model.module must be "FILE:NAME", got {short_repr(module)}; give one such as '
            '"my_models:Net", for Net in my_models.py beside this file.'
        )
    return Model(kind, module=module, loss=section.choice("loss", LOSSES))
