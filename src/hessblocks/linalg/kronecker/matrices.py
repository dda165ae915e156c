"""Matrices of tokens, one each: whole, thin, shared by all tokens, or symmetric.

Letters: N tokens (1 where all tokens share a matrix); R and W, rows and columns of the matrices; C,
inner size of a thin product leftᵀ right; K, columns multiplied together.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from jaxtyping import Float, Int
from torch import Tensor

from hessblocks.linalg.operators import chunks

TOGETHER = 1 << 18
"""Numbers of whole matrices that are packed at a time, few enough to stay in the cache."""


@dataclass(frozen=True, kw_only=True, eq=False)
class UpperTriangle:
    """Indices of the entries on and above the diagonal of a square matrix."""

    rows: Int[Tensor, " entries"]
    """Row of each entry."""
    columns: Int[Tensor, " entries"]
    """Column of each entry."""
    places: Int[Tensor, " entries"]
    """Index of each entry in the flattened matrix."""
    numbers: Int[Tensor, " places"]
    """Number of the entry that each place of the flattened symmetric matrix repeats."""


@lru_cache(maxsize=16)
def upper_triangle(size: int, device: torch.device) -> UpperTriangle:
    """Index the upper triangle of a (size, size) matrix."""
    rows, columns = torch.triu_indices(size, size, device=device)
    numbers = torch.empty(size, size, dtype=torch.long, device=device)
    numbers[rows, columns] = numbers[columns, rows] = torch.arange(len(rows), device=device)
    return UpperTriangle(
        rows=rows, columns=columns, places=rows * size + columns, numbers=numbers.flatten()
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class TokenMatrices:
    """Matrix D_n (R, W) of each token: right_n itself, or the thin product left_nᵀ right_n."""

    right: Float[Tensor, "#N C W"]
    """(N | 1, C, W); the matrices themselves where `left` is None."""
    left: Float[Tensor, "#N C R"] | None = None
    """(N | 1, C, R), or None for whole matrices."""
    symmetric: bool = False
    """Whether every matrix is known to be symmetric."""

    @property
    def rows(self) -> int:
        """Rows R of each matrix."""
        return self.right.shape[1] if self.left is None else self.left.shape[2]

    @property
    def columns(self) -> int:
        """Columns W of each matrix."""
        return self.right.shape[2]

    @property
    def rank(self) -> int:
        """Inner size C of the thin product; R for whole matrices."""
        return self.right.shape[1]

    @property
    def shared(self) -> bool:
        """True where all tokens have the same matrix."""
        return self.right.shape[0] == 1 and (self.left is None or self.left.shape[0] == 1)

    def whole(self) -> Float[Tensor, "#N R W"]:
        """Multiply thin products out: the matrices, (N | 1, R, W)."""
        return self.right if self.left is None else self.left.mT @ self.right

    def compact(self) -> TokenMatrices:
        """Multiply thin products out where that holds no more numbers."""
        if self.left is None or self.rows * self.columns > self.rank * (self.rows + self.columns):
            return self
        return TokenMatrices(right=self.whole(), symmetric=self.symmetric)

    def plus(self, other: TokenMatrices) -> TokenMatrices:
        """Add token by token, D_n + D'_n: thin where both are and that holds fewer numbers."""
        symmetric = self.symmetric and other.symmetric
        if self.left is None or other.left is None:
            return TokenMatrices(right=self.whole() + other.whole(), symmetric=symmetric)
        left, right = _joined(self.left, other.left), _joined(self.right, other.right)
        return TokenMatrices(left=left, right=right, symmetric=symmetric).compact()

    def packed(self) -> TokenMatrices:
        """Pack symmetric matrices as rows, (N | 1, 1, R (R + 1) / 2), inner products kept."""
        assert self.symmetric
        upper = upper_triangle(self.rows, self.right.device)
        # an entry off the diagonal counts twice in an inner product, and is held once
        weights = (1.0 + (upper.rows != upper.columns).to(self.right.dtype)).sqrt()
        count = self.right.shape[0] if self.left is None else max(len(self.left), len(self.right))
        flat = self.right.new_empty(count, len(upper.places))
        for tokens in chunks(count, max(1, TOGETHER // len(upper.numbers))):
            entries = self.select(tokens).whole().flatten(1)
            torch.index_select(entries, 1, upper.places, out=flat[tokens]).mul_(weights)
        return TokenMatrices(right=flat[:, None])

    def transposed(self) -> TokenMatrices:
        """Transpose every matrix, D_nᵀ."""
        if self.symmetric:
            return self
        if self.left is None:
            return TokenMatrices(right=self.right.mT)
        return TokenMatrices(left=self.right, right=self.left)

    def select(self, tokens: slice) -> TokenMatrices:
        """Take the matrices of some tokens; shared ones stay as they are."""
        left = None if self.left is None else _take(self.left, tokens)
        return replace(self, right=_take(self.right, tokens), left=left)

    def narrow_rows(self, rows: slice) -> TokenMatrices:
        """Take some rows of every matrix."""
        if self.left is None:
            return TokenMatrices(right=self.right[:, rows])
        return TokenMatrices(left=self.left[:, :, rows], right=self.right)

    def times(self, columns: Float[Tensor, "*_ W K"]) -> Float[Tensor, "#N R K"]:
        """Multiply D_n X_n, as (N, R, K), for a stack (N, W, K) or one X (W, K) of all tokens."""
        inner = self.right @ columns
        return inner if self.left is None else self.left.mT @ inner

    def summed(self, weights: Float[Tensor, " N"]) -> TokenMatrices:
        """Sum Σ_n weights_n D_n, as the matrix of one token."""
        if self.left is None:
            total = (weights @ self.right.flatten(1)).view(1, self.rows, self.columns)
        else:
            right = weights[:, None, None] * self.right
            left = self.left.expand(len(right), -1, -1)
            total = (left.flatten(0, 1).T @ right.flatten(0, 1))[None]
        return TokenMatrices(right=total, symmetric=self.symmetric)

    @property
    def nbytes(self) -> int:
        """Bytes of the numbers held."""
        left = 0 if self.left is None or self.left is self.right else self.left.nbytes
        return self.right.nbytes + left

    def diagonals(self) -> Float[Tensor, "#N R"]:
        """Take the diagonal of each square matrix, (N | 1, R)."""
        if self.left is None:
            return self.right.diagonal(dim1=1, dim2=2)
        return (self.left * self.right).sum(1)


def _take(tensor: Tensor, tokens: slice) -> Tensor:
    return tensor if tensor.shape[0] == 1 else tensor[tokens]


def _joined(first: Tensor, second: Tensor) -> Tensor:
    """Join two thin factors side by side, either of them possibly shared by all tokens."""
    count = max(first.shape[0], second.shape[0])
    return torch.cat([first.expand(count, -1, -1), second.expand(count, -1, -1)], dim=1)
