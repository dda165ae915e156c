"""Linear operators and randomised estimators with standard errors."""

from hessblocks.linalg.estimators import (
    FEWEST_PROBES,
    ConditionNumber,
    DiagonalEstimate,
    Eigenvalues,
    Estimate,
    Probes,
    diagonal,
    frobenius_norm,
    norm_from_squares,
    trace,
)
from hessblocks.linalg.kronecker import (
    MEMORY_LIMIT,
    BlockGrid,
    ExactOperator,
    KroneckerSum,
    KroneckerTerm,
    TokenMatrices,
)
from hessblocks.linalg.operators import (
    AdjointOperator,
    BoundedCache,
    DenseOperator,
    LinearOperator,
    chunks,
    slices,
    student_factor,
    working_dtype,
)
from hessblocks.linalg.spectra import (
    Spectrum,
    condition_number,
    extreme_eigenvalues,
    jensen_shannon_distance,
    spectral_density,
)

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
