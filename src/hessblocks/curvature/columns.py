"""Estimate the norms of one block column by Hessian-vector products with probes in one group.

Letters: K probes, z a probe that is zero outside group j, H_ij the block with rows i and columns j.
H z contains H_ij z for every i, and E‖H_ij z‖² = ‖H_ij‖_F². If only diagonal blocks are wanted,
only the rows i = j are computed.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from hessblocks.conventions import PARTS, Part
from hessblocks.curvature.groups import ParameterGroup, merge
from hessblocks.curvature.products import Hessian, HessianBlock, Problem, squared_products
from hessblocks.errors import RunError, check_whole
from hessblocks.linalg import (
    FEWEST_PROBES,
    Estimate,
    Probes,
    default_limit,
    keeping,
    norm_from_squares,
)

ProbeBlocks = Iterable[Float[Tensor, "piece entries"]]
Squares = dict[Part, Float[Tensor, "K rows"]]


@dataclass(frozen=True, kw_only=True)
class ColumnSquares:
    """Squared norms ‖H_ij z‖² for each probe z in group j, each group i and part."""

    column: str
    """Name of group j."""
    exact: bool
    """Whether the probes are all unit vectors of group j; then the squares sum to ‖H_ij‖_F²."""
    squares: Mapping[Part, Mapping[str, tuple[float, ...]]]
    """Squares by part and name of group i, one per probe."""

    def norm(self, part: Part, row: str) -> Estimate:
        """Estimate the Frobenius norm of one block from this column alone."""
        return norm_of(torch.tensor(self.squares[part][row], dtype=torch.float64), exact=self.exact)


def norm_of(squares: Float[Tensor, " K"], *, exact: bool) -> Estimate:
    """Compute the root of the sum of exact squares, or of the mean of random ones, with error."""
    if exact:
        return Estimate(value=float(squares.sum().sqrt()), method="exact")
    return norm_from_squares(squares)


@keeping
def column_squares(
    problem: Problem,
    groups: Mapping[str, ParameterGroup],
    column: str,
    rows: Sequence[str] | None = None,
    parts: Sequence[Part] = PARTS,
    probes: int = 16,
    seed: int = 0,
    by_name: bool = True,
) -> ColumnSquares:
    """Multiply H with probes in one group; return each group's squared norms of the products.

    The probes depend on the seed and on the column's name, not on the other groups, so that columns
    are independent of each other and of their order. If group j has at most K entries, its unit
    vectors are the probes, and the result is exact.

    Args:
        problem: model, batches and loss.
        groups: groups by name, as from `parameter_groups`.
        column: name of group j.
        rows: names of the groups i; all by default.
        parts: parts to compute, of H_o, H_f and H; they share the probes.
        probes: K, at least 4.
        seed: seed of the probes.
        by_name: whether the probes depend on the column's name; if not, groups of equal size have
            the same probes.

    Returns:
        The squares of each group and part.

    Raises:
        ArgumentError: too few probes.
        RunError: a product is not finite.

    Cost: about one gradient's time per probe and part, and of one probe more if all products of a
        block are 0. Memory: one vector of all rows for each part and each probe of a batch, bounded
        by the problem's memory limit.
    """
    check_probes(probes)
    if by_name:
        seed = int.from_bytes(hashlib.sha256(f"{seed} {column}".encode()).digest()[:7], "big")
    group, rows = groups[column], rows or list(groups)
    wanted = [groups[name] for name in rows]
    later = [name for member in groups.values() for name in member.parameters]
    block = HessianBlock(rows=merge("rows", wanted), columns=group, parts=parts, later=later)

    def measured(blocks: ProbeBlocks) -> Squares:
        pieces = [squared_products(problem, vectors, wanted, block) for vectors in blocks]
        return {part: torch.cat([piece[part].cpu() for piece in pieces]) for part in parts}

    values = measured(_vectors(problem, group, probes, seed, len(parts)))
    exact = group.size <= probes
    if not exact and any(bool((sums == 0).all(0).any()) for sums in values.values()):
        source = Probes(Hessian(problem, group), seed=seed, distribution="gaussian")
        _fill_missed(values, measured, source)
    squares = {}
    for part, sums in values.items():
        if not torch.isfinite(sums).all():
            raise RunError(
                f"curvature: products of {part} with {group.name} are not finite; look at the "
                "weights, or use float64 parameters"
            )
        squares[part] = dict(zip(rows, map(tuple, sums.T.tolist()), strict=True))
    return ColumnSquares(column=column, exact=exact, squares=squares)


def _fill_missed(
    values: Squares, measured: Callable[[ProbeBlocks], Squares], source: Probes
) -> None:
    """Replace zeros of blocks that all Rademacher probes missed by Gaussian estimates, in place.

    A nonzero block may map all sign vectors to 0, but maps a Gaussian vector to 0 with probability
    0. Products below the rounding error of the largest product count as 0.

    Cost: one product; if a block was missed, as many more as there were probes.
    """
    first = source.draw(1).T
    looks = measured([first])
    noise = 100 * torch.finfo(first.dtype).eps
    bound = noise**2 * max(float(look.max()) for look in looks.values())
    missed = {part: (sums == 0).all(0) & (looks[part][0] > bound) for part, sums in values.items()}
    if any(bool(places.any()) for places in missed.values()):
        count = len(next(iter(values.values())))
        anew = measured(drawn.T for drawn in source.blocks(count, len(first)))
        for part, places in missed.items():
            values[part][:, places] = anew[part][:, places]


def check_probes(probes: int) -> None:
    """Check that there are enough probes for an error bar.

    Raises:
        ArgumentError: there are too few.
    """
    check_whole(FEWEST_PROBES, probes=probes)


def _vectors(
    problem: Problem, group: ParameterGroup, probes: int, seed: int, parts: int
) -> Iterator[Tensor]:
    """Draw K random sign vectors in batches of (k, size); if size ≤ K, return all unit vectors."""
    operator, together = Hessian(problem, group), _together(problem, parts)
    if group.size <= probes:
        unit = torch.eye(group.size, dtype=operator.dtype, device=operator.device)
        return iter(unit.split(together))
    return (drawn.T for drawn in Probes(operator, seed=seed).blocks(probes, together))


def _together(problem: Problem, parts: int) -> int:
    """Choose the vectors per product; if graphs are not cached, as many as fit the memory."""
    if problem.plan.hold:
        return problem.plan.together
    limit = problem.memory_limit or default_limit(problem.device)
    parameters = sum(p.nbytes for p in problem.parameters.values())
    return max(problem.plan.together, limit // (4 * (parts + 1) * parameters))
