"""Sums of Kronecker products: products, norms and diagonals without forming them."""

from hessblocks.linalg.kronecker.grid import BlockGrid
from hessblocks.linalg.kronecker.matrices import TokenMatrices
from hessblocks.linalg.kronecker.sum import MEMORY_LIMIT, ExactOperator, KroneckerSum
from hessblocks.linalg.kronecker.terms import KroneckerTerm
