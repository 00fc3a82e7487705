"""Convex sets: project, distance, contains, minimize_linear, support_bound.

A new set needs two files: its module, and this list. It is then known to `parse_set` by its
``spec_name``, and the property tests check it with the example of its docstring.
"""

from pcfed.sets.affine import Affine, Halfspace, Hyperplane
from pcfed.sets.balls import Ellipsoid, GroupL1Ball, L1Ball, L2Ball, LinfBall, NuclearBall
from pcfed.sets.base import ConvexSet, ProjectionError, UnboundedError, WarmStart
from pcfed.sets.boxes import Box, NonNegative, WholeSpace
from pcfed.sets.combine import Blocks, Scaled, Translated, scale_entries
from pcfed.sets.cones import PSDCone, SecondOrderCone
from pcfed.sets.custom import CustomSet
from pcfed.sets.intersection import Intersection
from pcfed.sets.parse import parse_set
from pcfed.sets.polyhedra import Polyhedron
from pcfed.sets.rows import SetRows, project_l1_balls, project_simplices
from pcfed.sets.simplex import Simplex
from pcfed.sets.usage import Usage

__all__ = [
    "Affine",
    "Blocks",
    "Box",
    "ConvexSet",
    "CustomSet",
    "Ellipsoid",
    "GroupL1Ball",
    "Halfspace",
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
    "Usage",
    "WarmStart",
    "WholeSpace",
    "parse_set",
    "project_l1_balls",
    "project_simplices",
    "scale_entries",
]
