"""Hessian of the cross-entropy by hidden states and by the unembedding, for large vocabularies.

The logits are linear in the final hidden state, f = W h + b. Let p be their softmax and ω the
token's weight in the loss. The gradient is Wᵀ r with r = ω (p − onehot), and the Hessian is
    Λ_h = ω (Wᵀ diag(p) W − m mᵀ), m = Wᵀ p.
So no automatic differentiation through the logits is needed. Two steps avoid cancellation in the
difference. The mean row is subtracted from W, which does not change the softmax. The likeliest
class c is treated separately: with q = 1 − p_c = Σ_{i ≠ c} p_i and v = Σ_{i ≠ c} p_i w_i,
    Λ_h / ω = Σ_{i ≠ c} p_i w_i w_iᵀ + p_c q w_c w_cᵀ − v vᵀ − p_c (v w_cᵀ + w_c vᵀ).
The logits are linear in W, so that its H_f is 0. Its H_o needs no vocabulary × vocabulary matrix:
    H_o = Σ_n ω_n h_n h_nᵀ ⊗ (diag p_n − p_n p_nᵀ),
    ⟨diag p − ppᵀ, diag q − qqᵀ⟩ = p·q − Σ p²q − Σ pq² + (p·q)².

Letters: N tokens, D width of the hidden state, C classes, P inputs of the unembedding (D + 1 with a
bias), S, T and K columns, F rows of a factor, M rows whose outer products are summed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from hessblocks.linalg import ExactOperator, chunks, unit_of

FEW = 16
"""For at most this many tokens, each token's sum is one matrix product."""
_ROWS, _COLUMNS = 1024, 4
"""Rows and left columns per batch of products, which fits the cache."""


class SoftmaxBlock(ExactOperator):
    """Operator Σ_n ω_n h_n h_nᵀ ⊗ (diag p_n − p_n p_nᵀ), flattened (inputs, classes) row by row."""

    def __init__(
        self,
        inputs: Float[Tensor, "N P"],
        probabilities: Float[Tensor, "N C"],
        weights: Float[Tensor, " N"],
        memory_limit: int,
    ) -> None:
        """Store hidden states, probabilities and weights.

        Args:
            inputs: h of each token, with a last column of ones for a bias.
            probabilities: p.
            weights: ω, not negative.
            memory_limit: bytes of intermediate results.
        """
        size = inputs.shape[1] * probabilities.shape[1]
        super().__init__(
            (size, size), dtype=inputs.dtype, device=inputs.device, positive_semidefinite=True
        )
        self._inputs = inputs * weights.sqrt()[:, None]
        self._p = probabilities
        self._limit = memory_limit

    @property
    def nbytes(self) -> int:
        """Count the bytes of the stored numbers."""
        return self._inputs.nbytes + self._p.nbytes

    def adjoint(self) -> SoftmaxBlock:
        """Return the block itself, which is symmetric."""
        return self

    def _matmat(self, columns: Tensor) -> Tensor:
        """Cost: N P C K multiplications; N C K numbers, some tokens at a time."""
        count, classes = columns.shape[1], self._p.shape[1]
        out = columns.new_zeros(self._inputs.shape[1], classes * count)
        step = max(1, self._limit // (4 * classes * count * columns.element_size()))
        for chunk in chunks(len(self._p), step):
            h, p = self._inputs[chunk], self._p[chunk, :, None]
            weighted = p * (h @ columns.view(h.shape[1], -1)).view(len(h), classes, count)
            weighted = weighted - p * weighted.sum(1, keepdim=True)
            out += h.T @ weighted.flatten(1)
        return out.view(-1, count)

    def diagonal(self) -> Float[Tensor, " size"]:
        """Compute Σ_n ω_n h² ⊗ p (1 − p)."""
        return (self._inputs.square().T @ (self._p * (1 - self._p))).flatten()

    def frobenius_norm(self) -> float:
        """Compute the norm from two N × N matrices. Cost: N² (C + P) multiplications."""
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


class SeenLoss:
    """Derivatives of the mean cross-entropy by final hidden states and by the unembedding."""

    def __init__(
        self,
        head: nn.Linear,
        hidden: Float[Tensor, "N D"],
        labels: Int[Tensor, " N"],
        weights: Float[Tensor, " N"],
        memory_limit: int,
    ) -> None:
        """Store the tokens; derived quantities are computed at their first use.

        Args:
            head: the model's output layer; its current weights are used.
            hidden: h of each token.
            labels: class of each token; arbitrary if its weight is 0.
            weights: ω, the weight of each token in the loss.
            memory_limit: bytes of intermediate results.
        """
        self.weight: Float[Tensor, "C D"] = head.weight.detach().clone()
        """W."""
        self._bias = None if head.bias is None else head.bias.detach().clone()
        self._hidden = hidden
        self._labels = labels
        self._weights = weights
        self.memory_limit = memory_limit
        """Bytes of intermediate results."""

    @property
    def few_classes(self) -> bool:
        """Whether C < D."""
        return len(self.weight) < self._hidden.shape[1]

    @property
    def shape(self) -> tuple[int, int]:
        """(inputs, classes) of the unembedding, with a bias as one more input."""
        return self.inputs.shape[1], len(self.weight)

    @cached_property
    def inputs(self) -> Float[Tensor, "N P"]:
        """Hidden states h, with a last column of ones for a bias."""
        ones = self._hidden.new_ones(len(self._hidden), int(self._bias is not None))
        return torch.cat([self._hidden, ones], dim=-1)

    @cached_property
    def gradient(self) -> Float[Tensor, "N D"]:
        """∂ℓ/∂h = Wᵀ r, computed for a batch of tokens at a time."""
        return torch.cat([self._residual(chunk) @ self.weight for chunk in self._cut(4)])

    @cached_property
    def residual(self) -> Float[Tensor, "N C"]:
        """∂ℓ/∂f = r."""
        return self._residual(slice(None))

    def _residual(self, chunk: slice) -> Tensor:
        """Compute r of some tokens; for accuracy, the label's entry is minus the others' sum."""
        label = self._labels[chunk, None]
        residual = self._shares(chunk).scatter_(-1, label, 0.0)
        residual.scatter_(-1, label, -residual.sum(-1, keepdim=True))
        return residual.mul_(self._weights[chunk, None])

    @cached_property
    def through(self) -> Float[Tensor, "N D C"]:
        """((∂²ℓ/∂f²) W)ᵀ."""
        p, weight = self._probabilities, self.weight
        scaled: Tensor = p[:, None] * (weight.T - (p @ weight)[:, :, None])
        return self._weights[:, None, None] * scaled

    def halves(
        self, row: Float[Tensor, "N D S"], column: Float[Tensor, "N D T"]
    ) -> tuple[Float[Tensor, "N F S"], Float[Tensor, "N F T"]]:
        """Factor rowᵀ Λ_h column into two matrices with F = min(C, D) rows."""
        if self.few_classes:
            return self._half @ row, self._half @ column
        return row, self._half @ column

    def padded(self, rows: Float[Tensor, "N D S"]) -> Float[Tensor, "N P S"]:
        """Append a row of zeros if there is a bias."""
        return nn.functional.pad(rows, (0, 0, 0, self.inputs.shape[1] - rows.shape[1]))

    def block(self) -> SoftmaxBlock:
        """Return the Gauss-Newton block of the unembedding's weight."""
        return SoftmaxBlock(self.inputs, self._probabilities, self._weights, self.memory_limit)

    def _shares(self, chunk: slice) -> Tensor:
        """Compute p of some tokens."""
        return nn.functional.linear(self._hidden[chunk], self.weight, self._bias).softmax(-1)

    @cached_property
    def _probabilities(self) -> Float[Tensor, "N C"]:
        return self._shares(slice(None))

    def root(
        self, rows: Float[Tensor, "*N C S"], tokens: slice = slice(None)
    ) -> Float[Tensor, "_ C S"]:
        """Compute R `rows` = √(ω p) (`rows` − pᵀ `rows`) of some tokens, with Rᵀ R = ∂²ℓ/∂f²."""
        p = self._probabilities[tokens]
        factor = (self._weights[tokens, None] * p).sqrt()[..., None]
        return (rows - p[:, None] @ rows).mul_(factor)

    def curvature(self) -> Float[Tensor, "N D D"]:
        """Compute Λ_h of each token, in batches of tokens.

        Returns:
            Symmetric positive semi-definite matrices.

        Cost: N C D² multiplications; 2 N C numbers, at most the limit, besides the result.
        """
        out = self._hidden.new_empty(*self._hidden.shape, self._hidden.shape[-1])
        centred = self.weight - self.weight.mean(0)
        for chunk in self._cut(2):
            out[chunk] = self._curvature(chunk, centred)
        return out

    def _curvature(self, chunk: slice, centred: Tensor) -> Tensor:
        p = self._shares(chunk)
        likeliest = p.argmax(-1, keepdim=True)
        top = p.gather(-1, likeliest)
        others = p.scatter_(-1, likeliest, 0.0)
        rest = others.sum(-1, keepdim=True)
        row, sums = centred[likeliest[:, 0]], others @ centred
        left = torch.stack([top * rest * row, -sums, -top * sums, -row], dim=-1)
        right = torch.stack([row, sums, row, top * sums], dim=1)
        out = summed_squares(others, centred).baddbmm_(left, right)
        return out.mul_(self._weights[chunk, None, None])

    def _cut(self, copies: int) -> Iterator[slice]:
        """Split the tokens into batches; `copies` arrays of a batch's logits fit the limit."""
        bytes_each = copies * len(self.weight) * self._hidden.element_size()
        return chunks(len(self._hidden), max(1, self.memory_limit // bytes_each))

    @cached_property
    def _half(self) -> Float[Tensor, "N _ D"]:
        return self.root(self.weight) if self.few_classes else self.curvature()


def summed_squares(
    weights: Float[Tensor, "N M"], rows: Float[Tensor, "M D"]
) -> Float[Tensor, "N D D"]:
    """Compute Σ_m weights_nm rows_m rows_mᵀ for all n; each product of two columns is formed once.

    Args:
        weights: weights of either sign.
        rows: vectors, the same for all n.

    Returns:
        Symmetric matrices.

    Cost: N M D²/2 multiplications, as products of matrices; N M D² for few n.
    """
    if len(weights) <= FEW:
        return torch.stack([(weight[:, None] * rows).T @ rows for weight in weights])
    width = rows.shape[1]
    out = weights.new_empty(len(weights), width, width)
    for left in chunks(width, _COLUMNS):
        count = (left.stop - left.start) * (width - left.start)
        total = weights.new_zeros(len(weights), count)
        for chunk in chunks(len(rows), _ROWS):
            products = rows[chunk, left, None] * rows[chunk, None, left.start :]
            total.addmm_(weights[:, chunk], products.flatten(1))
        strip = total.view(len(weights), -1, width - left.start)
        out[:, left, left.start :] = strip
        out[:, left.start :, left] = strip.mT
    return out
