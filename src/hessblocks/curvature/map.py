"""Curvature map: Frobenius norms of all group × group blocks of the Hessian, with error bars.

Letters: K probes, s_ij = ‖H_ij‖_F², G groups, B batches of S samples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from hessblocks.conventions import PARTS, SYMBOLS, Part
from hessblocks.curvature.columns import ColumnSquares, check_probes, column_squares, norm_of
from hessblocks.curvature.cost import BlockChoice, Tell, Way, Work, decide
from hessblocks.curvature.frobenius_norms import heterogeneity
from hessblocks.curvature.groups import ParameterGroup, overlap
from hessblocks.curvature.products import Problem, groups_of
from hessblocks.curvature.sampled import gram_matrices
from hessblocks.errors import check_name
from hessblocks.linalg import Estimate, keeping, norms_from_pairs, student_factor
from hessblocks.statistics import Heterogeneity
from hessblocks.storage import Tabular

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True, kw_only=True, repr=False)
class CurvatureMap(Tabular):
    """Frobenius norm of every group × group block of one part of the Hessian; symmetric."""

    part: Part
    """outer, functional or full."""
    names: tuple[str, ...]
    """The groups, in the order of rows and columns."""
    layers: tuple[int | None, ...]
    """Layer of each group, counted from 0; None for groups outside the layers."""
    table: Mapping[tuple[str, str], Estimate]
    """Norm of each estimated block, by (row, column); (column, row) has the same."""
    off_diagonal_share: Estimate | None
    """Share of the off-diagonal blocks in the squared norm of the whole matrix, 0 to 1; None if
    only diagonal blocks were estimated, or groups overlap."""
    method: Way = "probes"
    """`probes` or `sampled`; a sampled norm may be negative, which means 0 within its error."""

    @property
    def heterogeneity(self) -> Heterogeneity[Estimate]:
        """Divide the largest norm on the diagonal by the smallest, with a 95 % interval."""
        return heterogeneity({name: self.table[name, name] for name in self.names})

    def to_rows(self) -> list[dict[str, Any]]:
        """Return tidy rows: row, column, part, value, standard_error, method."""
        return [
            {"row": row, "column": column, "part": self.part, **estimate.to_row()}
            for (row, column), estimate in self.table.items()
        ]

    def __str__(self) -> str:
        """Show the number of groups, the heterogeneity, and the method with its cost."""
        estimate = next(iter(self.table.values()))
        kind = "samples" if self.method == "sampled" else "probes"
        spent = f", {estimate.probes} {kind}" if estimate.probes else ""
        read = f"map of {SYMBOLS[self.part]}, {len(self.names)} groups{spent}"
        return f"{read}; own blocks: {self.heterogeneity}"

    def plot(self, ax: Axes | None = None) -> Figure:
        """Draw the map as a heatmap on a logarithmic scale, with a separate colour for zeros.

        Args:
            ax: axes of matplotlib to draw on; None for a figure of its own.

        Returns:
            The figure that was drawn on.
        """
        from hessblocks.drawing import draw_heatmap

        norms = {pair: norm.value for pair, norm in self.table.items()}
        values = [[norms.get((i, j), math.nan) for j in self.names] for i in self.names]
        return draw_heatmap(self.names, self.layers, values, part=self.part, ax=ax)


@keeping
def curvature_map(
    problem: Problem,
    groups: Mapping[str, ParameterGroup] | None = None,
    part: Part = "full",
    probes: int = 16,
    seed: int = 0,
    *,
    method: str = "auto",
    blocks: BlockChoice = "all",
    tell: Tell | None = None,
) -> CurvatureMap:
    """Estimate all block norms from G · K Hessian-vector products, or H_o's from 4 K gradients.

    Separate estimates of the blocks would take G² · K products.

    With `probes`, for every part: a probe z in group j gives ‖H_ij z‖² for all i. Since H is
    symmetric, column j and column i both estimate block (i, j). Both have nearly the same variance,
    and the 2 K squares are averaged. If a group has at most K entries, its row and column are
    exact.

    With `sampled`, for H_o only: g = Jᵀ L ε with L Lᵀ = H_ℓ costs one ordinary gradient. Pairs of
    samples give unbiased estimates of all squared norms (`norms_from_pairs`). The estimate of a
    small off-diagonal block may be negative; its root keeps the sign.

    Args:
        problem: model, batches and loss.
        groups: groups by name; None: those of `parameter_groups`.
        part: outer (H_o), functional (H_f) or full (H).
        probes: K random vectors per group, at least 4; 4 K samples.
        seed: seed of the probes.
        method: `probes`, `sampled`, or `auto`: `sampled` for H_o if the loss is no callable, it
            costs less and the samples fit the memory; the map's `method` is the choice.
        blocks: `all`, or `diagonal`, only diagonal blocks.
        tell: called with the estimated cost before the work starts, such as `print`. None: log it
            to `hessblocks.curvature` at level INFO.

    Returns:
        The map; `.to_rows()`, `.plot()`, `.heterogeneity`, `.off_diagonal_share`.

    Raises:
        ArgumentError: an unknown part, method or kind of blocks, no group, too few probes,
            or `sampled` for another part or for a callable loss.
        RunError: a loss or a product is not finite.

    Cost: about two gradients' time for each group and probe; half for `diagonal`; sampled,
        2/3 of a gradient for each of 4 K samples, for any number of groups.

    Examples:
        >>> import torch, hessblocks as hb
        >>> x, y = torch.tensor([[1.0, 2.0]]), torch.zeros(1, 1)
        >>> problem = hb.Problem(torch.nn.Linear(2, 1), [(x, y)], "regression")
        >>> for cell in hb.curvature_map(problem).to_rows():  # norms of 2 x xᵀ, 2 x and 2
        ...     print(cell["row"], cell["column"], round(cell["value"], 2))
        weight weight 10.0
        weight bias 4.47
        bias weight 4.47
        bias bias 2.0
    """
    check_name("part", part, PARTS)
    groups = groups_of(problem, groups)
    check_probes(probes)
    work = Work(problem=problem, groups=groups, parts=[part], blocks=blocks)
    cost, sampling = decide(work, probes=probes, method=method, tell=tell)
    if sampling:
        grams = gram_matrices(problem, groups, sampling, seed=seed)
        return combine_samples(groups, grams.products, diagonal=blocks == "diagonal")
    columns = []
    for name in groups:
        rows = list(groups) if blocks == "all" else [name]
        columns.append(column_squares(problem, groups, name, rows, [part], cost.count, seed))
    return combine_columns(groups, columns, part)


def combine_samples(
    groups: Mapping[str, ParameterGroup],
    products: Float[Tensor, "G B S S"],
    *,
    diagonal: bool = False,
) -> CurvatureMap:
    """Make the map of H_o from the inner products of samples.

    Args:
        groups: groups of rows and columns, by name.
        products: inner products of each group, in the same order.
        diagonal: whether to compute only the diagonal blocks.

    Returns:
        The map.
    """
    norms = norms_from_pairs(products)

    def cell(i: int, j: int) -> Estimate | None:
        return norms.norm(i, j) if i == j or not diagonal else None

    return _map(groups, "outer", cell, None if diagonal else norms.off_diagonal_share, "sampled")


def combine_columns(
    groups: Mapping[str, ParameterGroup], columns: Sequence[ColumnSquares], part: Part
) -> CurvatureMap:
    """Make the map from the block columns of all groups.

    Args:
        groups: groups of rows and columns, by name.
        columns: one column per group, in the same order, with all rows, or only the diagonal.
        part: part of the map.

    Returns:
        The map of that part.
    """
    return _map(groups, part, partial(_cell, columns, part), _off_diagonal_share(columns, part))


def _map(
    groups: Mapping[str, ParameterGroup],
    part: Part,
    cell: Callable[[int, int], Estimate | None],
    share: Estimate | None,
    method: Way = "probes",
) -> CurvatureMap:
    names = tuple(groups)
    pairs = product(enumerate(names), repeat=2)
    return CurvatureMap(
        part=part,
        names=names,
        layers=tuple(group.layer for group in groups.values()),
        table={(row, column): norm for (i, row), (j, column) in pairs if (norm := cell(i, j))},
        off_diagonal_share=None if overlap(groups.values()) else share,
        method=method,
    )


def _cell(columns: Sequence[ColumnSquares], part: Part, i: int, j: int) -> Estimate | None:
    """Compute the norm of block (i, j) from an exact column if there is one, else from both."""
    if columns[i].column not in columns[j].squares[part]:
        return None
    for column, row in (j, i), (i, j):
        if columns[column].exact or i == j:
            return columns[column].norm(part, columns[row].column)
    first, last = sorted((i, j))
    squares = [_squares(columns, part, last, first), _squares(columns, part, first, last)]
    return norm_of(torch.cat(squares), exact=False)


def _squares(columns: Sequence[ColumnSquares], part: Part, column: int, row: int) -> Tensor:
    return torch.tensor(columns[column].squares[part][columns[row].column], dtype=torch.float64)


def _off_diagonal_share(columns: Sequence[ColumnSquares], part: Part) -> Estimate | None:
    """Compute Σ_{i≠j} s_ij / Σ_ij s_ij, with the delta method over the independent columns.

    Column j estimates the blocks (i, j) and, by symmetry, (j, i), each with weight 1/2. An exact
    column replaces the others' estimates of its blocks. All blocks of a column share probes.

    Returns:
        The share, 0 if all blocks are 0; None if only diagonal blocks were estimated.
    """
    if len(columns) > 1 and columns[1].column not in columns[0].squares[part]:
        return None
    diagonal, others, counts = [], [], []
    for j, column in enumerate(columns):
        diagonal.append(_squares(columns, part, j, j))
        weighted = [
            (1 + column.exact - other.exact) * _squares(columns, part, j, i)
            for i, other in enumerate(columns)
            if i != j
        ]
        others.append(torch.stack(weighted).sum(0) if weighted else torch.zeros_like(diagonal[-1]))
        counts.append(1 if column.exact else len(diagonal[-1]))
    outside = sum(float(o.sum()) / count for o, count in zip(others, counts, strict=True))
    total = outside + sum(float(d.sum()) / count for d, count in zip(diagonal, counts, strict=True))
    if total == 0 or all(column.exact for column in columns):
        return Estimate(value=outside / total if total else 0.0, method="exact")
    share = outside / total
    variance = sum(
        float((((1 - share) * o - share * d) / total).var()) / count * student_factor(count) ** 2
        for o, d, count in zip(others, diagonal, counts, strict=True)
        if count > 1
    )
    return Estimate(
        value=share,
        standard_error=math.sqrt(variance),
        probes=sum(count for count in counts if count > 1),
    )
