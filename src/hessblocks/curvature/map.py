"""The curvature map: how large each group × group block of the Hessian is, with error bars.

Letters: K probes, s_ij = ‖H_ij‖_F², G groups.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hessblocks.conventions import PARTS, Part
from hessblocks.curvature.columns import ColumnSquares, column_squares, norm_of
from hessblocks.curvature.groups import ParameterGroup
from hessblocks.curvature.products import Problem, check_groups
from hessblocks.errors import check_name
from hessblocks.linalg import Estimate, student_factor
from hessblocks.statistics import Heterogeneity, ends

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, kw_only=True)
class CurvatureMap:
    """Frobenius norm of every group × group block of one part of the Hessian; symmetric."""

    part: Part
    """outer, functional or full."""
    names: tuple[str, ...]
    """The groups, in the order of rows and columns."""
    layers: tuple[int | None, ...]
    """Layer of each group, counted from 0; None outside the layers."""
    table: Mapping[tuple[str, str], Estimate]
    """Norm of each block (row, column); (column, row) holds the same."""
    off_diagonal_share: Estimate
    """Share of the squared norm of the whole that lies off the groups' own blocks, 0 to 1."""

    @property
    def heterogeneity(self) -> Heterogeneity[Estimate]:
        """Largest over smallest norm on the diagonal, with its 95 % interval."""
        return heterogeneity({name: self.table[name, name] for name in self.names})

    def to_rows(self) -> list[dict[str, Any]]:
        """Tidy rows: row, column, part, value, standard_error, method."""
        return [
            {"row": row, "column": column, "part": self.part, **estimate.to_row()}
            for (row, column), estimate in self.table.items()
        ]

    def plot(self) -> Figure:
        """The map as a matplotlib figure: colours on a logarithmic scale, zeros in a colour of their own."""
        from hessblocks.figures import draw_heatmap

        values = [[self.table[row, column].value for column in self.names] for row in self.names]
        return draw_heatmap(self.names, self.layers, values, part=self.part)


def curvature_map(
    problem: Problem,
    groups: Mapping[str, ParameterGroup],
    part: Part = "full",
    probes: int = 16,
    seed: int = 0,
) -> CurvatureMap:
    """Norms of all group × group blocks from G · K products instead of G² · K.

    A probe in group j gives ‖H_ij z‖² for all i. H is symmetric, so that block (i, j) is measured
    twice, by column j and by column i, with nearly the same variance: the 2 K squares are averaged. A
    group with no more entries than probes is measured exactly, and so are its row and its column.

    Args:
        problem: model, batches and loss.
        groups: by name, as `parameter_groups` gives them.
        part: outer (H_o), functional (H_f) or full (H).
        probes: K random vectors a group, at least 4.
        seed: of the probes.

    Returns:
        The map; `.to_rows()`, `.plot()`, `.heterogeneity`, `.off_diagonal_share`.

    Raises:
        ArgumentError: an unknown part, no group, too few probes.
        RunError: a loss or a product is not finite.

    Cost: about two gradients' time for each group and probe.
    """
    check_name("part", part, PARTS)
    check_groups(problem, groups)
    columns = [
        column_squares(problem, groups, name, parts=[part], probes=probes, seed=seed)
        for name in groups
    ]
    return combine_columns(groups, columns, part)


def combine_columns(
    groups: Mapping[str, ParameterGroup], columns: Sequence[ColumnSquares], part: Part
) -> CurvatureMap:
    """The map from the columns of all its groups.

    Args:
        groups: rows and columns, by name.
        columns: one for each group, in the same order, each with all rows.
        part: one that the columns hold.

    Returns:
        The map of that part.
    """
    names = tuple(groups)
    exact = torch.tensor([column.exact for column in columns])
    squares = [
        torch.tensor([column.squares[part][name] for name in names], dtype=torch.float64)
        for column in columns
    ]
    table = {
        (row, column): _cell(squares, exact.tolist(), i, j)
        for i, row in enumerate(names)
        for j, column in enumerate(names)
    }
    return CurvatureMap(
        part=part,
        names=names,
        layers=tuple(group.layer for group in groups.values()),
        table=table,
        off_diagonal_share=_off_diagonal_share(squares, exact),
    )


def heterogeneity(norms: Mapping[str, Estimate]) -> Heterogeneity[Estimate]:
    """Largest over smallest norm, groups of norm exactly 0 left out and named.

    Args:
        norms: of the groups' own blocks.

    Returns:
        The ratio, its 95 % interval, and the groups at both ends; the ratio's standard error is a fourth
        of the interval's width.
    """
    found = ends({name: (norm.value, norm.standard_error) for name, norm in norms.items()})
    zero_groups = tuple(name for name, norm in norms.items() if norm.value <= 0)
    if found is None:
        nothing = Estimate(value=0.0, method="exact")
        return Heterogeneity(ratio=nothing, largest="", smallest="", zero_groups=zero_groups)
    both = norms[found.largest], norms[found.smallest]
    exact = not found.standard_error and all(end.method == "exact" for end in both)
    ratio = Estimate(
        value=found.ratio,
        standard_error=found.standard_error or 0.0,
        probes=max(end.probes for end in both),
        method="exact" if exact else "estimate",
    )
    return Heterogeneity(
        ratio=ratio,
        low=found.low,
        high=found.high,
        largest=found.largest,
        smallest=found.smallest,
        zero_groups=zero_groups,
    )


def _cell(squares: Sequence[Tensor], exact: Sequence[bool], i: int, j: int) -> Estimate:
    """Norm of block (i, j): exact where either column is, else from the probes of both."""
    if exact[j] or i == j:
        return norm_of(squares[j][i], exact=exact[j])
    if exact[i]:
        return norm_of(squares[i][j], exact=True)
    both = (squares[j][i], squares[i][j]) if i < j else (squares[i][j], squares[j][i])
    return norm_of(torch.cat(both), exact=False)


def _off_diagonal_share(squares: Sequence[Tensor], exact: Tensor) -> Estimate:
    """Σ_{i≠j} s_ij / Σ_ij s_ij, with the delta method over the independent columns.

    Column j measures the blocks (i, j) and, by symmetry, (j, i) with weight one half each; an exact
    column replaces what others measured of its blocks. Within a column, all blocks share probes.

    Returns:
        The share, 0 where everything is 0.
    """
    own, others = [], []
    for j, column in enumerate(squares):
        weights = torch.where(exact, 0.0, 1.0) if not exact[j] else torch.where(exact, 1.0, 2.0)
        weights[j] = 0.0
        own.append(column[j])
        others.append((weights.double()[:, None] * column).sum(dim=0))
    counts = [1 if e else len(diagonal) for e, diagonal in zip(exact.tolist(), own, strict=True)]
    outside = sum(float(o.sum()) / count for o, count in zip(others, counts, strict=True))
    total = outside + sum(float(d.sum()) / count for d, count in zip(own, counts, strict=True))
    if total == 0 or bool(exact.all()):
        return Estimate(value=outside / total if total else 0.0, method="exact")
    share = outside / total
    variance = sum(
        float(((1 - share) * o - share * d).var()) / count * student_factor(count) ** 2
        for o, d, count in zip(others, own, counts, strict=True)
        if count > 1
    )
    return Estimate(
        value=share,
        standard_error=math.sqrt(variance) / total,
        probes=sum(count for count in counts if count > 1),
    )
