"""Figure 1: the Hessian of one whole block as a map, and how uneven it is from group to group."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from hessblocks.curvature import Hessian, ParameterGroup, Problem, parameter_groups
from hessblocks.data import addition_batch
from hessblocks.figures import Heatmap
from hessblocks.storage import Row
from hessblocks.studies import shared
from hessblocks.studies.engine import Check, Rows, Scale, Study, Summary, seed_of

ATTENTION = ("query", "key", "value", "projection")
GROUPS = (*ATTENTION, "mlp in", "mlp out")
_NAMES = (
    *(f"layers.0.attention.{name}" for name in ATTENTION),
    "layers.0.mlp.in",
    "layers.0.mlp.out",
)
_SIZES: dict[Scale, shared.Size] = {
    "smoke": shared.Size(width=8, sums=8, seeds=1),
    "laptop": shared.Size(width=16, sums=64, seeds=1),
    "paper": shared.Size(width=16, sums=64, seeds=1),
}
CELLS = 8
"""Rows and columns of the map's cells for each group of width² parameters."""
SMALLEST = 1e-30
"""Entries below it, exact zeros among them, count as this size."""


def measure(settings: shared.DrawSettings) -> list[Row]:
    """The dense Hessian of the block, averaged over cells: the mean of log10 |entry|."""
    width, seed = settings.width, settings.seed
    draw = seed_of("heatmap", seed)
    model = shared.addition_model(
        "softmax", layers=1, width=width, sigma=shared.weight_size(width), seed=draw
    )
    problem = Problem(model, [addition_batch(settings.sums, seed=draw)])
    groups = parameter_groups(model)
    parts = [groups[name] for name in _NAMES]
    sizes = torch.tensor([group.size for group in parts])
    cells = cell_means(_dense(problem, parts), width**2 // CELLS)
    owner = torch.arange(len(parts)).repeat_interleave(CELLS * sizes // width**2).tolist()
    return [
        {
            "study": "heatmap",
            "seed": seed,
            "row": row,
            "column": column,
            "row_group": GROUPS[owner[row]],
            "column_group": GROUPS[owner[column]],
            "value": value,
        }
        for row, line in enumerate(cells.tolist())
        for column, value in enumerate(line)
    ]


def cell_means(
    matrix: Float[Tensor, "rows columns"], cell: int
) -> Float[Tensor, "cell_rows cell_columns"]:
    """Mean of log10 |entry| over cells of cell × cell entries."""
    logarithms = matrix.abs().clamp(min=SMALLEST).log10()
    return F.avg_pool2d(logarithms[None], cell)[0]


def _dense(problem: Problem, groups: Sequence[ParameterGroup], columns: int = 64) -> Tensor:
    """The Hessian over all groups together, some columns at a time."""
    views = tuple(view for group in groups for view in group.views)
    whole_block = ParameterGroup(name="block", role="other", layer=0, views=views)
    operator = Hessian(problem, whole_block)
    unit = torch.eye(whole_block.size, dtype=operator.dtype)
    return torch.cat([operator @ part for part in unit.split(columns, dim=1)], dim=1)


def summarise(rows: Rows) -> Summary:
    """The map of the first seed, whole and attention alone, and the mean size of each group's block."""
    first = [row for row in rows if row["seed"] == 0]
    attention = [
        row for row in first if row["row_group"] in ATTENTION and row["column_group"] in ATTENTION
    ]
    maps = {"whole block": first, "attention": attention}
    sizes = _sizes(rows)
    return shared.summary(
        "The Hessian of one block at initialisation",
        "Mean of log10 |entry| over cells of the dense Hessian; one head, no norm, cross-entropy on "
        "the digits of sums.",
        (_map(title, part) for title, part in maps.items() if part),
        _checks(sizes),
        blocks=[{"group": group, "log10_size": size} for group, size in sizes.items()],
    )


def _map(title: str, rows: Rows) -> Heatmap:
    side = math.isqrt(len(rows))
    values = [row["value"] for row in rows]
    owners = [row["column_group"] for row in rows[:side]]
    edges = [place for place in range(1, side) if owners[place] != owners[place - 1]]
    return Heatmap(
        title=title,
        values=tuple(tuple(values[start : start + side]) for start in range(0, len(rows), side)),
        label="mean of log10 |entry|",
        edges=tuple(edges),
        names=tuple(dict.fromkeys(owners)),
    )


def _sizes(rows: Rows) -> dict[str, float]:
    """Mean of log10 |entry| of each group's own block."""
    own = shared.gathered(
        (row for row in rows if row["row_group"] == row["column_group"]), "row_group"
    )
    return {group: sum(values) / len(values) for (group,), values in own.items()}


def _checks(sizes: Mapping[str, float]) -> tuple[Check, ...]:
    if not {"query", "value"} <= set(sizes):
        return ()
    gap = sizes["value"] - sizes["query"]
    return (
        Check(
            fact="entries of the value block are larger than those of the query block",
            expected="about 1.5 decades (modes 2e-5 and 6e-7)",
            ours=f"{gap:.2f} decades",
            holds=0.75 < gap < 2.25,
        ),
    )


STUDY = Study(
    name="heatmap",
    title="map of the Hessian of one whole block",
    source="Hessian paper, Figure 1",
    published="The blocks of the Hessian differ by orders of magnitude: value entries about 2e-5, query about 6e-7.",
    settings=shared.draws(_SIZES),
    measure=measure,
    summarise=summarise,
    columns=("study", "seed", "row", "column", "row_group", "column_group", "value"),
)
