"""Packages that only some modules need: which extra of pcfed installs them."""

from __future__ import annotations

from importlib.util import find_spec

from pcfed.errors import install_command


class MissingExtra(ModuleNotFoundError):
    """A package of an extra is not installed; the message names the extra and how to get it."""

    def __init__(self, module: str, package: str, extra: str) -> None:
        super().__init__(
            f"{module} needs the package {package!r} of the extra {extra!r}, which is not "
            f"installed; run {install_command(extra)}.",
            name=package,
        )


def require(module: str, extra: str, *packages: str) -> None:
    """Raise `MissingExtra` if a package of an extra is not installed; nothing is imported.

    Examples
    --------
    >>> require("pcfed.config", "app", "math")
    """
    for package in packages:
        if find_spec(package) is None:
            raise MissingExtra(module, package, extra)
