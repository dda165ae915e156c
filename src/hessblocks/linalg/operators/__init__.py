"""Linear operators given by their matvec: base class, dense ones, inner products, CG solver."""

from hessblocks.linalg.operators.bounded import BoundedCache, chunks, default_limit, slices
from hessblocks.linalg.operators.inner import (
    column_lengths,
    column_products,
    inner_products,
    largest_size,
    lengths,
    pooled_factor,
    student_factor,
    unit_of,
    working_dtype,
)
from hessblocks.linalg.operators.operator import (
    DenseOperator,
    LinearOperator,
    Operand,
    identity_like,
    keeping,
    operator_of,
)
from hessblocks.linalg.operators.solving import Solution, inverse, solve
