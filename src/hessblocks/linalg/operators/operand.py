"""What estimators take: an operator, or what stands for one, as a problem does for the Hessian of its loss."""

from __future__ import annotations

from functools import singledispatch

from hessblocks.errors import ArgumentError
from hessblocks.linalg.operators.operator import LinearOperator


class Operand:
    """What may be given in the place of an operator; whose, is said with `operator_of.register`."""


@singledispatch
def operator_of(given: LinearOperator | Operand) -> LinearOperator:
    """The operator that is meant.

    Args:
        given: an operator, or what stands for one.

    Returns:
        The operator.

    Raises:
        ArgumentError: neither.
    """
    if isinstance(given, LinearOperator):
        return given
    raise ArgumentError(
        f"expected an operator, such as hb.Hessian(problem), or a problem, got {type(given).__name__}"
    )
