"""Convex sets: project, distance, contains, minimize_linear, support_bound."""

from pcfed.sets.affine import Affine, Halfspace, Hyperplane
from pcfed.sets.balls import GroupL1Ball, L1Ball, L2Ball, LinfBall
from pcfed.sets.base import ConvexSet, Hint, ProjectionError, UnboundedError
from pcfed.sets.boxes import Box, NonNegative, WholeSpace
from pcfed.sets.combine import Blocks, Scaled, Translated
from pcfed.sets.cones import PSDCone, SecondOrderCone
from pcfed.sets.custom import CustomSet
from pcfed.sets.ellipsoid import Ellipsoid
from pcfed.sets.intersection import Intersection
from pcfed.sets.nuclear import NuclearBall
from pcfed.sets.parse import parse_set
from pcfed.sets.polyhedra import Polyhedron
from pcfed.sets.rows import SetRows, project_l1_balls, project_simplices
from pcfed.sets.simplex import Simplex
from pcfed.sets.stretched import stretched

__all__ = [
    "Affine",
    "Blocks",
    "Box",
    "ConvexSet",
    "CustomSet",
    "Ellipsoid",
    "GroupL1Ball",
    "Halfspace",
    "Hint",
    "Hyperplane",
    "Intersection",
    "L1Ball",
    "L2Ball",
    "LinfBall",
    "NonNegative",
    "NuclearBall",
    "PSDCone",
    "Polyhedron",
    "ProjectionError",
    "Scaled",
    "SecondOrderCone",
    "SetRows",
    "Simplex",
    "Translated",
    "UnboundedError",
    "WholeSpace",
    "parse_set",
    "project_l1_balls",
    "project_simplices",
    "stretched",
]
