"""Draw the pictures of choose-a-set.md: python docs/sets_pictures.py."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib import pyplot

from pcfed.sets import (
    Affine,
    Blocks,
    Box,
    ConvexSet,
    CustomSet,
    Ellipsoid,
    GroupL1Ball,
    Halfspace,
    Hyperplane,
    Intersection,
    L1Ball,
    L2Ball,
    LinfBall,
    NonNegative,
    NuclearBall,
    Polyhedron,
    PSDCone,
    Scaled,
    SecondOrderCone,
    Simplex,
    Translated,
    WholeSpace,
)

BLUE, ORANGE = "#0072B2", "#D55E00"
FOLDER = Path(__file__).with_name("sets")
SIDE = 121
POINTS = ((1.7, 1.2), (-1.5, 1.6), (-1.7, -0.5), (0.5, -1.7), (1.6, -0.9), (0.2, 0.3))
PLANE = np.eye(2)
SYMMETRIC = np.array([[1, 0, 0, 1], [0, 1, 1, 0]])  # the matrices [[a, b], [b, a]]
PAIR = np.array([[1, 1, 0], [0, 0, 1]])  # the vectors (a, a, b)
TRIANGLE = Polyhedron([[-1, 0], [0, -1], [1, 1]], [0.9, 0.9, 0.6])


class Slice(NamedTuple):
    """A set and the plane of its space that is drawn: rows of ``axes`` are its directions."""

    set: ConvexSet
    axes: np.ndarray = PLANE

    def project(self, points: np.ndarray) -> np.ndarray:
        """Project points of the plane; the planes below are such that projections stay in them."""
        moved = self.set.project(points @ self.axes)
        found = moved @ np.linalg.pinv(self.axes)
        if not np.allclose(found @ self.axes, moved, atol=1e-8):
            raise ValueError(f"{self.set}: projections leave the plane that is drawn")
        return found


SLICES = {
    "WholeSpace": Slice(WholeSpace()),
    "NonNegative": Slice(NonNegative()),
    "Box": Slice(Box([-1.2, -0.4], [0.8, 1.0])),
    "L1Ball": Slice(L1Ball(1.2)),
    "L2Ball": Slice(L2Ball(1.1)),
    "LinfBall": Slice(LinfBall(0.9)),
    "Ellipsoid": Slice(Ellipsoid(1.0, [0.65, 1.4])),
    "Simplex": Slice(Simplex(1.2)),
    "Halfspace": Slice(Halfspace([0.5, 1.0], 0.4)),
    "Hyperplane": Slice(Hyperplane([0.5, 1.0], 0.4)),
    "Affine": Slice(Affine([[1.0, -1.0]], [0.3])),
    "Polyhedron": Slice(TRIANGLE),
    "GroupL1Ball": Slice(GroupL1Ball([0, 0, 1], 1.5), PAIR),
    "NuclearBall": Slice(NuclearBall((2, 2), 1.8), SYMMETRIC),
    "SecondOrderCone": Slice(SecondOrderCone()),
    "PSDCone": Slice(PSDCone(2), SYMMETRIC),
    "Intersection": Slice(Intersection(L2Ball(1.2), Halfspace([0.5, 1.0], 0.4))),
    "Blocks": Slice(Blocks({(0, 1): Box(-0.8, 0.8)})),
    "Translated": Slice(Translated(L1Ball(1.0), [0.6, 0.3])),
    "Scaled": Slice(Scaled(TRIANGLE, 0.5)),
    "CustomSet": Slice(CustomSet(lambda x: np.full_like(x, x.mean()), name="all equal")),
}


def draw(slice_: Slice, path: Path) -> None:
    """Draw the set, and arrows from some points to the nearest ones of the set."""
    figure = pyplot.figure(figsize=(1.7, 1.7))
    axis = figure.add_axes((0, 0, 1, 1))
    grid = np.linspace(-2, 2, SIDE)
    plane = np.stack(np.meshgrid(grid, grid), axis=-1).reshape(-1, 2)
    distance = np.linalg.norm(plane - slice_.project(plane), axis=1).reshape(SIDE, SIDE)
    axis.contourf(grid, grid, distance, levels=[-1, 0.025], colors=[BLUE], alpha=0.35)
    axis.plot([-2, 2, np.nan, 0, 0], [0, 0, np.nan, -2, 2], color="#bbbbbb", lw=0.6, zorder=0)
    points = np.array(POINTS)
    for point, nearest in zip(points, slice_.project(points), strict=True):
        if np.linalg.norm(point - nearest) > 0.05:
            arrow = {"arrowstyle": "-|>", "color": ORANGE, "lw": 1, "shrinkA": 0, "shrinkB": 0}
            axis.annotate("", nearest, point, arrowprops=arrow)
        axis.plot(*point, "o", color=ORANGE, ms=2.5)
    axis.set(xlim=(-2, 2), ylim=(-2, 2), aspect="equal")
    axis.axis("off")
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def main() -> None:
    """Write one picture for each set."""
    FOLDER.mkdir(exist_ok=True)
    for name, slice_ in SLICES.items():
        draw(slice_, FOLDER / f"{name}.png")


if __name__ == "__main__":
    main()
