"""Local losses: value, gradient and smoothness over the data of one agent."""

from pcfed.losses.base import Loss
from pcfed.losses.least_squares import LeastSquares
from pcfed.losses.logistic import LogisticRegression
from pcfed.losses.softmax import SoftmaxRegression

__all__ = ["LeastSquares", "LogisticRegression", "Loss", "SoftmaxRegression"]
