"""Lanczos: a growing orthonormal Krylov basis, and an operator's projection on it.

Letters: A symmetric (N, N), V the basis (N, k), T = VᵀA V, v the vector that comes next, c its
coupling. They fulfil A V = V T + v cᵀ, but for rounding, for a lack of symmetry in A, and for the
couplings of vectors that were put aside.

Gram-Schmidt is bound by memory, so it reads the basis as few times as it can. Basis vectors are the
contiguous rows of (k, N) tensors, and are worked on in pieces that stay in the cache. No copy of a
basis is made, whatever its dtype. Sums are kept in float64.
"""

import math
from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from hessblocks.errors import ArgumentError
from hessblocks.linalg.estimators import Probes, multiply
from hessblocks.linalg.operators import LinearOperator, unit_of, working_dtype

NEGLIGIBLE = 100
"""Remainders below so many rounding errors of the largest entry of T count as zero."""

PIECE = 1 << 16
"""Entries of a vector that Gram-Schmidt works on at once."""
ROTATED = 1 << 18
"""Entries of all rows that are rotated at once; their float64 copy then stays in the cache."""
MOST_PASSES = 4
"""Gram-Schmidt passes after the first, at most."""


def _pieces(*tensors: Float[Tensor, "... N"], size: int = PIECE) -> Iterator[tuple[Tensor, ...]]:
    """Cut all tensors along the last axis into the same pieces, one after the other."""
    if tensors[0].shape[-1] <= size:
        return iter([tensors])
    return zip(*(tensor.split(size, dim=-1) for tensor in tensors), strict=True)


def orthogonalise(
    vectors: Float[Tensor, "chains N"],
    stacks: Sequence[Float[Tensor, "chains rows N"]],
    near: int,
    *,
    tolerance: float = 0.0,
) -> tuple[Float[Tensor, "chains k"], Float[Tensor, " chains"]]:
    """Orthogonalise vectors against orthonormal rows, in place, by repeated Gram-Schmidt.

    Each vector has rows of its own. The first pass is over the rows that it is expected to overlap
    with. The second is over all rows and removes what rounding has left. Another follows wherever a
    pass has more than halved the length of one vector.

    Args:
        vectors: are changed.
        stacks: the k rows of each, in one or several tensors.
        near: index of the first row that a vector is expected to overlap with.
        tolerance: largest coefficient that may stay, relative to the length of the vector.

    Returns:
        The coefficients and the lengths of what remains, float64 on the CPU.

    Cost: reads all rows twice, or once where what is left is tolerated, and those from `near` on.

    Source: Daniel, Gragg, Kaufman and Stewart (1976); Parlett (1998), section 6.9.
    """
    coefficients = F.pad(_project_out(vectors, _rows_from(stacks, near)), (near, 0))
    before = row_lengths(vectors)
    for _ in range(MOST_PASSES):
        coefficients += _project_out(vectors, stacks, tolerance * before[:, None])
        after = row_lengths(vectors)
        if (2 * after >= before).all():
            break
        before = after
    return coefficients, after


def row_lengths(vectors: Float[Tensor, "chains N"]) -> Float[Tensor, " chains"]:
    """Compute Euclidean lengths, float64 on the CPU; pieces are summed in float64."""
    parts = [torch.linalg.vector_norm(piece, dim=1) for (piece,) in _pieces(vectors)]
    return torch.stack(parts).double().square().sum(0).sqrt().cpu()


def rotate(stacks: Sequence[Float[Tensor, "rows N"]], rotation: Float[Tensor, "k kept"]) -> None:
    """Replace the first rows by linear combinations of all rows, in place.

    Args:
        stacks: k rows in one or several tensors; are changed.
        rotation: column j has the coefficients of the new row j.
    """
    coefficients = rotation.T.to(stacks[0].device)
    for pieces in _pieces(*stacks, size=1 + ROTATED // rotation.shape[0]):
        turned = coefficients @ torch.cat(pieces).double()
        for piece in pieces:
            piece[: len(turned)] = turned[: len(piece)]
            turned = turned[len(piece) :]


def _rows_from(stacks: Sequence[Tensor], start: int) -> list[Tensor]:
    """Return the rows from index `start` on, as views."""
    rest = []
    for stack in stacks:
        rest.append(stack[:, min(start, stack.shape[1]) :])
        start = max(start - stack.shape[1], 0)
    return rest


def _project_out(
    vectors: Tensor, stacks: Sequence[Tensor], tolerated: Float[Tensor, "chains 1"] | float = 0.0
) -> Tensor:
    """Subtract each vector's projection on its rows, in place (a pass of classical Gram-Schmidt).

    Returns:
        The coefficients, float64 on the CPU; zeros, and the vector unchanged, where none exceeds
        `tolerated`.
    """
    columns = vectors[:, None]
    parts = [
        torch.cat([torch.bmm(piece, rows.mT) for rows in pieces], dim=2)
        for piece, *pieces in _pieces(columns, *stacks)
    ]
    total = torch.cat(parts, dim=1).sum(1, dtype=torch.float64).cpu()
    total.masked_fill_((total.abs() <= tolerated).all(1, keepdim=True), 0)
    if total.any():
        factors = total[:, None].to(vectors).split([rows.shape[1] for rows in stacks], dim=2)
        for piece, *pieces in _pieces(columns, *stacks):
            for rows, factor in zip(pieces, factors, strict=True):
                piece.baddbmm_(factor, rows, alpha=-1)
    return total


SURELY_NEGATIVE = 1e-6
"""A Ritz value θ below −SURELY_NEGATIVE · max |θ| is no rounding, not even of float32 inside a
float64 model. In lower precision the bound is the square root of the dtype's rounding."""


def check_definite(
    operator: LinearOperator, values: Float[Tensor, "*k"], unit: float = 1.0
) -> None:
    """Refuse an operator declared positive semi-definite where Lanczos met a negative value.

    A Ritz value is vᵀA v of a unit vector v, which no positive semi-definite A makes negative.

    Args:
        operator: A.
        values: Ritz values.
        unit: factor from `values` to eigenvalues of A, for the message.

    Raises:
        ArgumentError: one of the values is negative beyond rounding.
    """
    share = max(SURELY_NEGATIVE, math.sqrt(torch.finfo(operator.dtype).eps))
    lowest = float(values.min())
    if operator.positive_semidefinite and lowest < -share * float(values.abs().max()):
        raise ArgumentError(
            f"{operator!r}: it is declared positive semi-definite, but Lanczos met vᵀA v = "
            f"{lowest * unit:.4g} of a unit vector; declare it symmetric only"
        )


class KrylovBasis:
    """Krylov basis V of Lanczos, its projection T and the vector v that comes next.

    Every new vector is orthogonalised against the whole basis (full reorthogonalisation), so that
    no ghost copies of eigenvalues appear. Memory is V and v, `room` vectors, and a product. T, c
    and residuals are in `unit`, so that their squares stay in the range of any dtype.
    """

    def __init__(self, operator: LinearOperator, *, room: int, seed: int, results: int = 0) -> None:
        """Start from a Gaussian vector, which almost surely overlaps with every eigenvector.

        Args:
            operator: symmetric operator.
            room: vectors to hold at most.
            seed: seed of the random vectors.
            results: number of vectors that `combine` will compute.
        """
        self.operator, self.room = operator, room
        self.length = operator.shape[0]
        self._source = Probes(operator, seed=seed, distribution="gaussian")
        self._eps = torch.finfo(working_dtype(operator.dtype)).eps
        sizes = min(results, room), max(room - results, 0)  # the results outlive the rest
        self._stacks = [
            torch.empty(
                rows, self.length, dtype=working_dtype(operator.dtype), device=operator.device
            )
            for rows in sizes
        ]
        self.size = self.products = self.restarts = 0
        self.unit = 0.0  # until a product is not zero
        self._renewed = False  # whether v was ever replaced by a random vector
        self.projection: Float[Tensor, "k k"] = torch.zeros(0, 0, dtype=torch.float64)
        self.coupling: Float[Tensor, " k"] = torch.zeros(0, dtype=torch.float64)
        # sum of EᵀE over the parts E that A V = V T + v cᵀ leaves out
        self._lost: Float[Tensor, "k k"] = torch.zeros(0, 0, dtype=torch.float64)
        self._draw()

    @property
    def vectors(self) -> Float[Tensor, "N k"]:
        """Basis vectors V, copied together."""
        return torch.cat(self._filled()).T

    @property
    def full(self) -> bool:
        """Whether the basis has its largest size, with room for v only."""
        return self.size + 1 == sum(map(len, self._stacks))

    @property
    def complete(self) -> bool:
        """Whether the basis spans the whole space."""
        return self.size == self.length

    def extend(self) -> None:
        """Make a Lanczos step: move v into V, and orthogonalise A v against V into the next v."""
        taken = self._row(self.size)
        self.size += 1
        self.products += 1
        row = self._row(self.size)
        row.copy_(multiply(self.operator, taken[:, None].to(self.operator.dtype))[:, 0])
        self._to_units(row)
        # A v overlaps with v and what it is coupled to; after a restart these are all Ritz vectors
        coupled = self.coupling.nonzero()
        near = int(coupled[0]) if len(coupled) else self.size - 1
        inner, left = self._orthogonalised(row, near)
        self._grow(inner)
        noise = NEGLIGIBLE * self._eps * float(self.projection.abs().max())
        ended = left <= noise or self.complete
        self.coupling = torch.zeros(self.size, dtype=torch.float64)
        if not ended:
            row /= left
            self.coupling[-1] = left
        else:  # V spans an invariant subspace: go on in a random direction
            self._lost[-1, -1] += left**2
            self._draw()

    def residuals(self, rotation: Float[Tensor, "k some"]) -> Float[Tensor, " some"]:
        """Compute ‖A u − θ u‖ of the Ritz vectors u = V · rotation, without a product."""
        coupled = (self.coupling @ rotation).abs()
        lost = torch.einsum("ks,kl,ls->s", rotation, self._lost, rotation).clamp_min(0).sqrt()
        # parts left out before v was replaced need not be orthogonal to it: triangle inequality
        return coupled + lost if self._renewed else torch.hypot(coupled, lost)

    def restart(self, rotation: Float[Tensor, "k kept"], values: Float[Tensor, " kept"]) -> None:
        """Keep only the Ritz vectors V · rotation and their Ritz values (thick restart)."""
        rotate(self._filled(), rotation)
        self._row(rotation.shape[1]).copy_(self._row(self.size))
        self.size = rotation.shape[1]
        self.restarts += 1
        self.projection = torch.diag(values)
        self.coupling = self.coupling @ rotation
        self._lost = rotation.T @ self._lost @ rotation

    def renew(self) -> None:
        """Replace the next vector by a random one that is orthogonal to the basis.

        The coupling to the replaced vector stays in the residuals.
        """
        self._renewed = True
        self._lost += torch.outer(self.coupling, self.coupling)
        self.coupling = torch.zeros_like(self.coupling)
        self._draw()

    def combine(self, rotation: Float[Tensor, "k results"]) -> Float[Tensor, "N results"]:
        """Compute V · rotation in the memory of the basis, which is overwritten."""
        rotate(self._filled(), rotation)
        head = self._stacks[0]
        self._stacks = []
        return head[: rotation.shape[1]].T

    def _to_units(self, product: Float[Tensor, " N"]) -> None:
        """Divide a product by the unit in place; a larger product makes the unit grow."""
        unit = unit_of(product) if product.any() else 0.0
        if unit > self.unit:
            share = self.unit / unit
            self.projection *= share
            self.coupling *= share
            self._lost *= share**2
            self.unit = unit
        product /= self.unit or 1.0

    def _grow(self, inner: Float[Tensor, " k"]) -> None:
        """Border T with VᵀA v; record what the symmetric T leaves out where A is not symmetric."""
        self._lost = F.pad(self._lost, (0, 1, 0, 1))
        if not self._renewed:  # else `inner` overlaps with a replaced v, which is no asymmetry
            asymmetry = F.pad(self.coupling - inner[:-1], (0, 1))
            self._lost += torch.outer(asymmetry, asymmetry)
        self.projection = F.pad(self.projection, (0, 1, 0, 1))
        self.projection[-1] = self.projection[:, -1] = inner

    def _draw(self) -> None:
        """Draw the next v at random; orthogonalise it against V."""
        row = self._row(self.size)
        row.copy_(self._source.draw(1)[:, 0])
        for _ in range(0 if self.complete else 2):  # a complete basis leaves rounding alone
            row /= self._orthogonalised(row, 0)[1]

    def _orthogonalised(self, row: Float[Tensor, " N"], near: int) -> tuple[Tensor, float]:
        inner, left = orthogonalise(row[None], [rows[None] for rows in self._filled()], near)
        return inner[0], float(left)

    def _filled(self) -> list[Tensor]:
        head, tail = self._stacks
        return [head[: self.size], tail[: max(self.size - len(head), 0)]]

    def _row(self, number: int) -> Tensor:
        head, tail = self._stacks
        return head[number] if number < len(head) else tail[number - len(head)]
