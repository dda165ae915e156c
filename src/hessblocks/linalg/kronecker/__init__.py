"""Kronecker-factored operators: products, norms and diagonals of Σ_n a_n b_nᵀ ⊗ D_n, unformed."""

from hessblocks.linalg.kronecker.matrices import TokenMatrices
from hessblocks.linalg.kronecker.sum import MEMORY_LIMIT, BlockGrid, ExactOperator, KroneckerSum
from hessblocks.linalg.kronecker.terms import KroneckerTerm
