"""The picture of a search: scores against the coupling."""

from __future__ import annotations

import io
import math
from typing import TYPE_CHECKING

from pcfed.data.verified_file import import_optional
from pcfed.training.tuning import CandidateScore, Tuning

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STYLES = {"average": ("--", "s"), "free": ("-", "o")}
"""The line and the marker of each centre."""


def plot_tuning(tuning: Tuning) -> Figure:
    """Plot the score of every candidate against its coupling.

    Bars are standard errors of the differences from the best, by which candidates are compared.

    There is one line per personalization and centre; a ring marks the chosen candidate.
    """
    figure: Figure = import_optional("matplotlib.figure").Figure((7.0, 5.0), layout="constrained")
    axes = figure.subplots()
    lines: dict[tuple[float, str], list[CandidateScore]] = {}
    for each in sorted(tuning.ranking, key=lambda each: each.candidate):
        if not math.isnan(each.score):
            key = each.candidate.personalization, each.candidate.center
            lines.setdefault(key, []).append(each)
    thetas = sorted({theta for theta, _ in lines})
    for (theta, center), points in lines.items():
        line, marker = STYLES[center]
        axes.errorbar(
            [each.candidate.coupling for each in points],
            [each.score for each in points],
            [each.difference_error for each in points],
            label=f"personalization {theta:g}, center {center}",
            color=f"C{thetas.index(theta)}",
            linestyle=line,
            marker=marker,
            markersize=4,
            capsize=2,
        )
    chosen = tuning.chosen
    axes.plot(
        chosen.candidate.coupling, chosen.score, "ko", ms=14, fillstyle="none", label="chosen"
    )
    positive = [each.candidate.coupling for each in tuning.ranking if each.candidate.coupling > 0]
    if positive:  # a coupling of 0 has its place left of the smallest other one
        axes.set_xscale("symlog", linthresh=min(positive), linscale=0.5)
    axes.set(xlabel="coupling", ylabel=f"{tuning.score_name} in cross-validation")
    axes.set_title("bars: standard error of the difference from the best", fontsize="small")
    figure.legend(fontsize="small", loc="outside lower center", ncols=2)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def png_of(tuning: Tuning) -> bytes:
    """Return the picture as a PNG file."""
    content = io.BytesIO()
    plot_tuning(tuning).savefig(content, format="png", dpi=150)
    return content.getvalue()
