"""The part of an operator that a random sketch captures, and what is left of it (Hutch++)."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from hessblocks.linalg.inner import column_products, working_dtype
from hessblocks.linalg.operator import LinearOperator
from hessblocks.linalg.probes import Probes, multiply


def orthonormal(columns: Float[Tensor, "rows count"]) -> Float[Tensor, "rows count"]:
    """An orthonormal basis whose span holds the columns, in at least float32."""
    basis: Tensor = torch.linalg.qr(columns.to(working_dtype(columns.dtype)))[0]
    return basis


def sketch(
    op: LinearOperator, source: Probes, count: int, probe_chunk: int | None
) -> Float[Tensor, "size count"]:
    """An orthonormal basis of A S, S being `count` probes."""
    return orthonormal(multiply(op, source.draw(count), probe_chunk))


def captured_trace(
    op: LinearOperator, basis: Float[Tensor, "size count"], probe_chunk: int | None
) -> float:
    """tr(QᵀA Q) for a basis Q."""
    products = multiply(op, basis.to(op.dtype), probe_chunk)
    return float(column_products(basis, products).sum())


class DeflatedOperator(LinearOperator):
    """(I − QQᵀ) A (I − QQᵀ): an operator with the span of Q taken out on both sides."""

    def __init__(self, of: LinearOperator, basis: Float[Tensor, "size count"]) -> None:
        """Wrap `of`; nothing is computed."""
        super().__init__(of.shape, dtype=of.dtype, device=of.device, symmetric=of.symmetric)
        self._of = of
        self._basis = basis

    def _without_basis(self, columns: Tensor) -> Tensor:
        wide = columns.to(self._basis.dtype)
        return (wide - self._basis @ (self._basis.T @ wide)).to(columns.dtype)

    def _matmat(self, columns: Tensor) -> Tensor:
        return self._without_basis(self._of @ self._without_basis(columns))
