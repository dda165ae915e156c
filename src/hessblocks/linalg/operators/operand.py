"""Operands of estimators: an operator, or a problem that stands for its Hessian."""

from __future__ import annotations

from functools import singledispatch

from hessblocks.errors import ArgumentError
from hessblocks.linalg.operators.operator import LinearOperator


class Operand:
    """Base class of what stands for an operator; `operator_of.register` says for which one."""


@singledispatch
def operator_of(given: LinearOperator | Operand) -> LinearOperator:
    """Return the operator that an operand stands for.

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
        "expected an operator, such as hb.Hessian(problem), or a problem, got "
        f"{type(given).__name__}"
    )
