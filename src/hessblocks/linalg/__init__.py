"""Linear operators and randomised estimators with standard errors."""

from hessblocks.linalg.estimators import (
    FEWEST_PROBES,
    FEWEST_SAMPLES,
    ConditionNumber,
    DiagonalEstimate,
    Eigenvalues,
    Estimate,
    PairNorms,
    Probes,
    diagonal,
    frobenius_norm,
    norm_from_squares,
    norms_from_pairs,
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
    "PairNorms",
    "Probes",
    "Spectrum",
    "condition_number",
    "diagonal",
    "extreme_eigenvalues",
    "frobenius_norm",
    "jensen_shannon_distance",
    "norm_from_squares",
    "norms_from_pairs",
    "spectral_density",
    "trace",
]
