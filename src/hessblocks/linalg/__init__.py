"""Linear algebra: matvec operators, Kronecker sums, Hutchinson, Lanczos, all with errors."""

from hessblocks.linalg.estimators import (
    FEWEST_PROBES,
    FEWEST_SAMPLES,
    DiagonalEstimate,
    Eigenvalues,
    Estimate,
    PairNorms,
    Probes,
    diagonal,
    factor_samples,
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
    BoundedCache,
    DenseOperator,
    LinearOperator,
    Operand,
    Solution,
    chunks,
    default_limit,
    identity_like,
    inverse,
    keeping,
    operator_of,
    slices,
    solve,
    student_factor,
    unit_of,
    working_dtype,
)
from hessblocks.linalg.spectra import (
    Spectrum,
    extreme_eigenvalues,
    spectral_density,
)

__all__ = [
    "DenseOperator",
    "DiagonalEstimate",
    "Eigenvalues",
    "Estimate",
    "ExactOperator",
    "KroneckerSum",
    "LinearOperator",
    "Solution",
    "Spectrum",
    "diagonal",
    "extreme_eigenvalues",
    "frobenius_norm",
    "identity_like",
    "inverse",
    "norms_from_pairs",
    "solve",
    "spectral_density",
    "trace",
]
