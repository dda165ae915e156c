"""Linear operators and randomised estimators with standard errors."""

from hessblocks.linalg.operator import AdjointOperator, DenseOperator, LinearOperator
from hessblocks.linalg.results import Estimate

__all__ = ["AdjointOperator", "DenseOperator", "Estimate", "LinearOperator"]
