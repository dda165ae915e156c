"""Curvature of the cross-entropy by hidden states and unembedding, for large vocabularies.

The logits are linear in the final hidden state h, f = W h + b. With p their softmax and weight ω of
the token in the loss, the gradient is Wᵀ r with r = ω (p − onehot), and
    Λ_h = ω (Wᵀ diag(p) W − m mᵀ), m = Wᵀ p.
So no derivative passes through the vocabulary. Two steps keep the digits that the difference would
lose: the mean row is taken off W (no softmax sees it), and the likeliest class c is kept apart;
with q = 1 − p_c summed from the others and v = Σ_{i ≠ c} p_i w_i,
    Λ_h / ω = Σ_{i ≠ c} p_i w_i w_iᵀ + p_c q w_c w_cᵀ − v vᵀ − p_c (v w_cᵀ + w_c vᵀ).
For W itself, in which the logits are linear (H_f = 0), no vocabulary × vocabulary matrix is made:
    H_o = Σ_n ω_n h_n h_nᵀ ⊗ (diag p_n − p_n p_nᵀ),
    ⟨diag p − ppᵀ, diag q − qqᵀ⟩ = p·q − Σ p²q − Σ pq² + (p·q)².

Letters: N tokens, D width of the hidden state, C classes, P inputs of the unembedding (one more
than D with a bias), S, T and K columns, F rows of a factor, M rows whose products are summed.
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
"""Tokens up to which each token's sum is one product of matrices."""
_ROWS, _COLUMNS = 1024, 4
"""Rows and left columns whose products are made together, so that they stay in the cache."""


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
            (size, size), dtype=inputs.dtype, device=inputs.device, positive_semidefinite=True
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
        """Hold the tokens; derived quantities are computed once, when they are needed.

        Args:
            head: the model's output layer, from hidden states to logits, taken as it is now.
            hidden: h of each token.
            labels: the right class of each token; any where the weight is 0.
            weights: ω, the share of each token in the loss.
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
        """True where there are fewer classes than coordinates."""
        return len(self.weight) < self._hidden.shape[1]

    @property
    def shape(self) -> tuple[int, int]:
        """(inputs, classes) of the unembedding, a bias as one input more."""
        return self.inputs.shape[1], len(self.weight)

    @cached_property
    def inputs(self) -> Float[Tensor, "N P"]:
        """Hidden states h, with a last column of ones for a bias."""
        ones = self._hidden.new_ones(len(self._hidden), int(self._bias is not None))
        return torch.cat([self._hidden, ones], dim=-1)

    @cached_property
    def gradient(self) -> Float[Tensor, "N D"]:
        """∂ℓ/∂h = Wᵀ r; the logits of some tokens at a time."""
        return torch.cat([self._residual(some) @ self.weight for some in self._cut(4)])

    @cached_property
    def residual(self) -> Float[Tensor, "N C"]:
        """∂ℓ/∂f = r."""
        return self._residual(slice(None))

    def _residual(self, some: slice) -> Tensor:
        """Compute r of some tokens; the label's is minus the others' sum, which rounds least."""
        label = self._labels[some, None]
        residual = self._shares(some).scatter_(-1, label, 0.0)
        residual.scatter_(-1, label, -residual.sum(-1, keepdim=True))
        return residual.mul_(self._weights[some, None])

    @cached_property
    def through(self) -> Float[Tensor, "N D C"]:
        """((∂²ℓ/∂f²) W)ᵀ."""
        p, weight = self._probabilities, self.weight
        scaled: Tensor = p[:, None] * (weight.T - (p @ weight)[:, :, None])
        return self._weights[:, None, None] * scaled

    def halves(
        self, row: Float[Tensor, "N D S"], column: Float[Tensor, "N D T"]
    ) -> tuple[Float[Tensor, "N F S"], Float[Tensor, "N F T"]]:
        """Factor rowᵀ Λ_h column in two, through C rows or D, whichever are fewer."""
        if self.few_classes:
            return self._half @ row, self._half @ column
        return row, self._half @ column

    def padded(self, rows: Float[Tensor, "N D S"]) -> Float[Tensor, "N P S"]:
        """Append a row of zeros for a bias."""
        return nn.functional.pad(rows, (0, 0, 0, self.inputs.shape[1] - rows.shape[1]))

    def block(self) -> SoftmaxBlock:
        """Gauss-Newton block of the unembedding's own weight."""
        return SoftmaxBlock(self.inputs, self._probabilities, self._weights, self.memory_limit)

    def _shares(self, some: slice) -> Tensor:
        """Compute p of some tokens, anew."""
        return nn.functional.linear(self._hidden[some], self.weight, self._bias).softmax(-1)

    @cached_property
    def _probabilities(self) -> Float[Tensor, "N C"]:
        return self._shares(slice(None))

    def root(
        self, rows: Float[Tensor, "*N C S"], tokens: slice = slice(None)
    ) -> Float[Tensor, "_ C S"]:
        """Compute R rows of some tokens, √(ω p) (rows − pᵀ rows), with Rᵀ R = ∂²ℓ/∂f²."""
        p = self._probabilities[tokens]
        factor = (self._weights[tokens, None] * p).sqrt()[..., None]
        return (rows - p[:, None] @ rows).mul_(factor)

    def curvature(self) -> Float[Tensor, "N D D"]:
        """Compute Λ_h of each token, some tokens at a time.

        Returns:
            Symmetric positive semi-definite matrices.

        Cost: N C D² multiplications; 2 N C numbers, at most the limit, besides the result.
        """
        out = self._hidden.new_empty(*self._hidden.shape, self._hidden.shape[-1])
        centred = self.weight - self.weight.mean(0)
        for some in self._cut(2):
            out[some] = self._curvature(some, centred)
        return out

    def _curvature(self, some: slice, centred: Tensor) -> Tensor:
        p = self._shares(some)
        likeliest = p.argmax(-1, keepdim=True)
        most = p.gather(-1, likeliest)
        others = p.scatter_(-1, likeliest, 0.0)
        rest = others.sum(-1, keepdim=True)
        row, sums = centred[likeliest[:, 0]], others @ centred
        left = torch.stack([most * rest * row, -sums, -most * sums, -row], dim=-1)
        right = torch.stack([row, sums, row, most * sums], dim=1)
        out = summed_squares(others, centred).baddbmm_(left, right)
        return out.mul_(self._weights[some, None, None])

    def _cut(self, copies: int) -> Iterator[slice]:
        """Cut the tokens so that so many times the logits of a piece fit into the limit."""
        one = copies * len(self.weight) * self._hidden.element_size()
        return chunks(len(self._hidden), max(1, self.memory_limit // one))

    @cached_property
    def _half(self) -> Float[Tensor, "N _ D"]:
        return self.root(self.weight) if self.few_classes else self.curvature()


def summed_squares(
    weights: Float[Tensor, "N M"], rows: Float[Tensor, "M D"]
) -> Float[Tensor, "N D D"]:
    """Compute Σ_m weights_nm rows_m rows_mᵀ for all n; products of columns are made once.

    Args:
        weights: any sign.
        rows: shared by all n.

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
        for some in chunks(len(rows), _ROWS):
            products = rows[some, left, None] * rows[some, None, left.start :]
            total.addmm_(weights[:, some], products.flatten(1))
        strip = total.view(len(weights), -1, width - left.start)
        out[:, left, left.start :] = strip
        out[:, left.start :, left] = strip.mT
    return out
