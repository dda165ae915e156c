"""Gauss-Newton block of the unembedding, from hidden states and probabilities alone.

With h the hidden state, p the probabilities and ω the weight of a token,
    H_o = Σ_n ω_n h_n h_nᵀ ⊗ (diag p_n − p_n p_nᵀ),
    ⟨diag p − ppᵀ, diag q − qqᵀ⟩ = p·q − Σ p²q − Σ pq² + (p·q)²,
so that no matrix of the vocabulary's square is made. The logits are linear in the unembedding: H_f
= 0.

Letters: N tokens, P inputs (one more with a bias), C classes, K columns multiplied together.
"""

from __future__ import annotations

import math
from functools import cached_property

from jaxtyping import Float
from torch import Tensor

from hessblocks.linalg import ExactOperator, chunks, unit_of


class SoftmaxBlock(ExactOperator):
    """Operator Σ_n ω_n h_n h_nᵀ ⊗ (diag p_n − p_n p_nᵀ), flattened (inputs, classes) row by row."""

    def __init__(
        self,
        inputs: Float[Tensor, "N P"],
        probabilities: Float[Tensor, "N C"],
        weights: Float[Tensor, " N"],
        memory_limit: int,
    ) -> None:
        """Hold hidden states, probabilities and weights.

        Args:
            inputs: h of each token, with a last column of ones for a bias.
            probabilities: p.
            weights: ω, not negative.
            memory_limit: bytes of intermediate results.
        """
        size = inputs.shape[1] * probabilities.shape[1]
        super().__init__(
            (size, size),
            dtype=inputs.dtype,
            device=inputs.device,
            symmetric=True,
            positive_semidefinite=True,
        )
        self._inputs = inputs * weights.sqrt()[:, None]
        self._p = probabilities
        self._limit = memory_limit

    @property
    def nbytes(self) -> int:
        """Count the bytes of the numbers held."""
        return self._inputs.nbytes + self._p.nbytes

    def adjoint(self) -> SoftmaxBlock:
        """Return the block itself, which is symmetric."""
        return self

    def _matmat(self, columns: Tensor) -> Tensor:
        """Cost: N P C K multiplications; N C K numbers, some tokens at a time."""
        count, classes = columns.shape[1], self._p.shape[1]
        out = columns.new_zeros(self._inputs.shape[1], classes * count)
        step = max(1, self._limit // (4 * classes * count * columns.element_size()))
        for some in chunks(len(self._p), step):
            h, p = self._inputs[some], self._p[some, :, None]
            seen = p * (h @ columns.view(h.shape[1], -1)).view(len(h), classes, count)
            seen = seen - p * seen.sum(1, keepdim=True)
            out += h.T @ seen.flatten(1)
        return out.view(-1, count)

    def diagonal(self) -> Float[Tensor, " size"]:
        """Compute Σ_n ω_n h² ⊗ p (1 − p)."""
        return (self._inputs.square().T @ (self._p * (1 - self._p))).flatten()

    def frobenius_norm(self) -> float:
        """Compute the norm by two N × N matrices. Cost: N² (C + P) multiplications."""
        return unit_of(self._inputs) ** 2 * math.sqrt(self._square)

    @cached_property
    def _square(self) -> float:
        p, squares = self._p.double(), self._p.double().square()
        mixed, crossed = p @ p.T, squares @ p.T
        inner = mixed - crossed - crossed.T + mixed.square()
        h = self._inputs.double() / unit_of(self._inputs)
        return max(0.0, float(((h @ h.T).square() * inner).sum()))

    def add_dense(self, out: Float[Tensor, "rows columns"]) -> None:
        """Add the assembled block; N P² C² multiplications."""
        P, C = self._inputs.shape[1], self._p.shape[1]
        grid = out.view(P, C, P, C)
        for h, p in zip(self._inputs, self._p, strict=True):
            matrix = p.diag() - p[:, None] * p
            grid += h[:, None, None, None] * h[:, None] * matrix[:, None, :]
