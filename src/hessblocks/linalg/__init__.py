"""Linear operators and randomised estimators with standard errors."""

from hessblocks.linalg.kronecker import MEMORY_LIMIT, ExactOperator, KroneckerSum
from hessblocks.linalg.kronecker_grid import BlockGrid
from hessblocks.linalg.operator import AdjointOperator, DenseOperator, LinearOperator
from hessblocks.linalg.results import Estimate

__all__ = ["MEMORY_LIMIT", "AdjointOperator", "BlockGrid", "DenseOperator", "Estimate", "ExactOperator", "KroneckerSum", "LinearOperator"]
