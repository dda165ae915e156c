"""Gram-Schmidt against orthonormal rows, in as few passes over memory as there can be.

Rows lie whole in memory, and all work goes over them piece by piece. Sums are kept in float64, and
no copy of a basis is made, whatever its dtype.

Letters: N numbers in a vector, k rows.
"""

import math
from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

NEGLIGIBLE = 100
"""Remainders below so many rounding errors of the largest eigenvalue count as zero."""

AT_ONCE = 1 << 16
TURNED_AT_ONCE = 1 << 11
MOST_PASSES = 4


def _pieces(
    *tensors: Float[Tensor, "... N"], at_once: int = AT_ONCE
) -> Iterator[tuple[Tensor, ...]]:
    """Cut all tensors along the last axis into the same stretches, one after the other."""
    return zip(*(tensor.split(at_once, dim=-1) for tensor in tensors), strict=True)


def orthogonalise(
    vector: Float[Tensor, " N"],
    stacks: Sequence[Float[Tensor, "rows N"]],
    near: int,
    *,
    tolerance: float = 0.0,
) -> tuple[Float[Tensor, " k"], float]:
    """Project a vector onto the complement of orthonormal rows, in place.

    The first pass is over the rows that the vector is expected to have a part in. The second is
    over all rows and removes what rounding has left. Further ones follow as long as a pass takes
    half of the length away.

    Args:
        vector: is changed.
        stacks: the k rows, in one or several tensors.
        near: number of the first row that `vector` is expected to have a part in.
        tolerance: parts in all rows that may stay, in lengths of the vector.

    Returns:
        The coefficients (float64, on the CPU) and the length of what remains.

    Cost: reads the rows twice, where none but the last two are near; once where what is left is
    tolerated.

    Source: Daniel, Gragg, Kaufman and Stewart (1976); Parlett (1998), section 6.9.
    """
    coefficients = torch.zeros(sum(len(stack) for stack in stacks), dtype=torch.float64)
    coefficients[near:] += _project_out(vector, _behind(stacks, near))
    before = length(vector)
    for _ in range(MOST_PASSES):
        coefficients += _project_out(vector, stacks, tolerance * before)
        after = length(vector)
        if 2 * after >= before:
            break
        before = after
    return coefficients, after


def length(vector: Float[Tensor, " N"]) -> float:
    """Compute the Euclidean length; pieces are summed in float64."""
    squares = [piece @ piece for (piece,) in _pieces(vector)]
    return math.sqrt(float(torch.stack(squares).sum(dtype=torch.float64)))


def rotate(stacks: Sequence[Float[Tensor, "rows N"]], rotation: Float[Tensor, "k kept"]) -> None:
    """Replace the first rows by the combinations `rotation` of all rows.

    Args:
        stacks: k rows in one or several tensors; are changed.
        rotation: rotation of the k rows.
    """
    turn = rotation.T.to(stacks[0].device)
    for some in _pieces(*stacks, at_once=TURNED_AT_ONCE):
        turned = turn @ torch.cat(some).double()
        for piece in some:
            piece[: len(turned)] = turned[: len(piece)]
            turned = turned[len(piece) :]


def _behind(stacks: Sequence[Tensor], start: int) -> list[Tensor]:
    """Return the rows from number `start` on."""
    found = []
    for stack in stacks:
        found.append(stack[min(start, len(stack)) :])
        start = max(start - len(stack), 0)
    return found


def _project_out(vector: Tensor, stacks: Sequence[Tensor], tolerated: float = 0.0) -> Tensor:
    """Subtract the vector's projection on the rows in place, in one pass; return the coefficients.

    Where all of them are tolerated the vector stays, and they are zero.

    Returns:
        The coefficients, float64 on the CPU.
    """
    sizes = [len(stack) for stack in stacks]
    total = torch.zeros(sum(sizes), dtype=torch.float64, device=vector.device)
    for piece, *some in _pieces(vector, *stacks):
        total += torch.cat([rows @ piece for rows in some])
    if tolerated and float(total.abs().max()) <= tolerated:
        return torch.zeros(len(total), dtype=torch.float64)
    factors = total.to(vector.dtype).split(sizes)
    for piece, *some in _pieces(vector, *stacks):
        for rows, factor in zip(some, factors, strict=True):
            piece.addmv_(rows.T, factor, alpha=-1)
    return total.cpu()
