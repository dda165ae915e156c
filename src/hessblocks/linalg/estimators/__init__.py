"""Randomised estimators of norm, trace (Hutchinson, XTrace) and diagonal, with errors."""

from hessblocks.linalg.estimators.estimates import DiagonalEstimate, Eigenvalues, Estimate, Method
from hessblocks.linalg.estimators.hutchinson import (
    FEWEST_PROBES,
    diagonal,
    factor_samples,
    frobenius_norm,
    norm_from_squares,
)
from hessblocks.linalg.estimators.pairs import FEWEST_SAMPLES, PairNorms, norms_from_pairs
from hessblocks.linalg.estimators.probes import (
    Probes,
    assemble,
    check_probes,
    check_square,
    multiply,
)
from hessblocks.linalg.estimators.trace import trace
