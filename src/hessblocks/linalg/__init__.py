"""Linear operators and randomised estimators with standard errors."""

from hessblocks.linalg.condition import condition_number
from hessblocks.linalg.diagonal import diagonal
from hessblocks.linalg.divergence import jensen_shannon_distance
from hessblocks.linalg.kronecker import MEMORY_LIMIT, ExactOperator, KroneckerSum
from hessblocks.linalg.kronecker_grid import BlockGrid
from hessblocks.linalg.lanczos import extreme_eigenvalues
from hessblocks.linalg.norm import frobenius_norm, norm_from_squares
from hessblocks.linalg.operator import AdjointOperator, DenseOperator, LinearOperator
from hessblocks.linalg.probes import Probes
from hessblocks.linalg.quadrature import spectral_density
from hessblocks.linalg.results import (
    ConditionNumber,
    DiagonalEstimate,
    Eigenvalues,
    Estimate,
)
from hessblocks.linalg.spectrum import Spectrum
from hessblocks.linalg.trace import trace

__all__ = [
    "MEMORY_LIMIT",
    "AdjointOperator",
    "BlockGrid",
    "ConditionNumber",
    "DenseOperator",
    "DiagonalEstimate",
    "Eigenvalues",
    "Estimate",
    "ExactOperator",
    "KroneckerSum",
    "LinearOperator",
    "Probes",
    "Spectrum",
    "condition_number",
    "diagonal",
    "extreme_eigenvalues",
    "frobenius_norm",
    "jensen_shannon_distance",
    "norm_from_squares",
    "spectral_density",
    "trace",
]
