"""Plot heatmaps of the Hessian of a whole model and of its block (Figure 1)."""

import math
from collections.abc import Mapping

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from hessblocks.curvature import Hessian, Problem, custom_groups
from hessblocks.figures import Heatmap
from hessblocks.storage import Row
from hessblocks_studies import growth, shared
from hessblocks_studies.data import addition_batch
from hessblocks_studies.engine import Check, Rows, Scale, Study, Summary, seed_of

_ATTENTION = {
    name: f"model.layers.0.attention.{name}.weight"
    for name in ("query", "key", "value", "projection")
}
_BLOCK = {
    **_ATTENTION,
    "mlp in": "model.layers.0.mlp.input.weight",
    "mlp out": "model.layers.0.mlp.output.weight",
}
PARAMETERS = {
    "tokens": "model.token_embedding.weight",
    "positions": "model.position_embedding.weight",
    **_ATTENTION,
    "mlp in": _BLOCK["mlp in"],
    "mlp in bias": "model.layers.0.mlp.input.bias",
    "mlp out": _BLOCK["mlp out"],
    "mlp out bias": "model.layers.0.mlp.output.bias",
    "head": "lm_head.weight",
    "head bias": "lm_head.bias",
}
"""Group → its parameter, in the order of the authors' map."""
MAPS = {
    "whole model": tuple(PARAMETERS),
    "whole block": tuple(_BLOCK),
    "attention": tuple(_ATTENTION),
}
"""Map → its groups."""
_SIZES: dict[Scale, growth.Size] = {
    "smoke": growth.Size(width=8, sums=8, seeds=1),
    "laptop": growth.Size(width=16, sums=64, seeds=5),
    "paper": growth.Size(width=16, sums=64, seeds=20),
}
CELLS = 8
"""Rows and columns of a map's cells for each group of width² parameters."""
FEWEST, MOST = 6, 16
"""Fewest and most cells per group on the map of the whole model, whose groups' sizes differ by a
factor of 85."""
PUBLISHED = {"value": 2e-5, "query": 6e-7}
"""Published most frequent sizes of the entries of a block."""
FACTOR = 2.0
"""Largest factor between the ratio of two sizes and the published ratio."""
SMALLEST = 1e-30
"""Lower bound for sizes: smaller entries, including exact zeros, are set to it."""


def measure(settings: growth.DrawSettings) -> list[Row]:
    """Average log10 |entry| of the dense Hessian over each pair of groups and over cells.

    Only the first seed has rows for cells.

    Returns:
        A row for each pair of groups and for each cell; biases are 0 and change no other entry.
    """
    width, seed = settings.width, settings.seed
    draw = seed_of("heatmap", seed)
    model = growth.addition_model(
        "softmax-mlp-biases", layers=1, width=width, sigma=growth.weight_size(width), seed=draw
    )
    head = model.lm_head
    head.bias = nn.Parameter(torch.zeros(head.out_features, dtype=head.weight.dtype))
    problem = Problem(model, [addition_batch(settings.sums, seed=draw)])
    sizes = {name: group.size for name, group in custom_groups(model, PARAMETERS).items()}
    logarithms = _dense(problem).abs().clamp(min=SMALLEST).log10()
    rows = _rows(logarithms, sizes, dict.fromkeys(PARAMETERS, 1), "groups", seed)
    if seed == 0:
        even = {name: CELLS * size // width**2 for name, size in sizes.items()}
        bounded = {name: min(max(count, FEWEST), MOST, sizes[name]) for name, count in even.items()}
        block = {name: even[name] for name in _BLOCK}
        rows += _rows(logarithms, sizes, bounded, "whole model", seed)
        rows += _rows(logarithms, sizes, block, "whole block", seed)
    return rows


def _rows(
    logarithms: Tensor, sizes: Mapping[str, int], counts: Mapping[str, int], kind: str, seed: int
) -> list[Row]:
    """Make the rows of cells over some groups, with a number of parts per group."""
    starts = dict(zip(sizes, torch.tensor([0, *sizes.values()]).cumsum(0).tolist(), strict=False))
    places = [range(starts[name], starts[name] + sizes[name]) for name in counts]
    columns = torch.tensor([column for part in places for column in part])
    parts = torch.cat([torch.arange(sizes[name]) * counts[name] // sizes[name] for name in counts])
    shifts = torch.tensor([0, *counts.values()])[:-1].cumsum(0)
    shifts = shifts.repeat_interleave(torch.tensor([sizes[name] for name in counts]))
    cells = cell_means(logarithms[columns][:, columns], parts + shifts)
    owner = [name for name, count in counts.items() for _ in range(count)]
    return [
        {
            "study": "heatmap",
            "map": kind,
            "seed": seed,
            "row": row,
            "column": column,
            "row_group": owner[row],
            "column_group": owner[column],
            "value": value,
        }
        for row, line in enumerate(cells.tolist())
        for column, value in enumerate(line)
    ]


def cell_means(
    matrix: Float[Tensor, "rows rows"], cell: Int[Tensor, " rows"]
) -> Float[Tensor, "cells cells"]:
    """Average over cells; entry (i, j) belongs to the cell (cell[i], cell[j])."""
    member = torch.nn.functional.one_hot(cell).to(matrix.dtype)
    mean = member / member.sum(0)
    return mean.T @ matrix @ mean


def _dense(problem: Problem, columns: int = 64) -> Tensor:
    """Compute the Hessian over all groups together, `columns` at a time."""
    (group,) = custom_groups(problem.model, {"model": tuple(PARAMETERS.values())}).values()
    operator = Hessian(problem, group)
    unit = torch.eye(group.size, dtype=operator.dtype)
    with operator.kept():
        return torch.cat([operator @ part for part in unit.split(columns, dim=1)], dim=1)


def summarise(rows: Rows) -> Summary:
    """Plot the maps of the first seed, and average the size of each group's block over seeds."""
    maps = {name: _cells(rows, name) for name in MAPS}
    diagonal = [row for row in rows if row["map"] == "groups" and row["row"] == row["column"]]
    diagonals = shared.gathered(diagonal, "row_group")
    seeds = len({row["seed"] for row in rows})
    return shared.summary(
        "The Hessian of one model at initialisation",
        "Mean of log10 |entry| over cells of the dense Hessian, first seed; one layer, one head, "
        f"no norm, cross-entropy on the digits of sums. A group of the whole model has {FEWEST} "
        f"to {MOST} cells on a side, whatever its size. Seeds of the check: {seeds}.",
        (_map(title, part) for title, part in maps.items() if part),
        _checks(shared.nested(diagonal, "row_group", "seed")),
        blocks=shared.mean_table(diagonals, "group", value="log10_size"),
    )


def _cells(rows: Rows, name: str) -> Rows:
    """Select the cells of a map; the attention's cells are among those of its block."""
    kind = "whole block" if name == "attention" else name
    return [
        row
        for row in rows
        if row["map"] == kind
        and row["row_group"] in MAPS[name]
        and row["column_group"] in MAPS[name]
    ]


def _map(title: str, rows: Rows) -> Heatmap:
    side = math.isqrt(len(rows))
    values = [row["value"] for row in rows]
    owners = [row["column_group"] for row in rows[:side]]
    edges = [index for index in range(1, side) if owners[index] != owners[index - 1]]
    return Heatmap(
        title=title,
        values=tuple(tuple(values[start : start + side]) for start in range(0, len(rows), side)),
        label="mean of log10 |entry|",
        edges=tuple(edges),
        names=tuple(dict.fromkeys(owners)),
    )


def _checks(sizes: shared.Values) -> tuple[Check, ...]:
    """Judge the ratio of value entries to query entries, with the error over seeds."""
    gap = shared.difference(sizes, "value", "query")
    if not gap.seeds:
        return ()
    published = math.log10(PUBLISHED["value"] / PUBLISHED["query"])
    larger = gap.matches(
        "entries of the value block are larger than those of the query block",
        f"{published:.2f} decades (modes {PUBLISHED['value']:g} and {PUBLISHED['query']:g}), "
        f"within a factor {FACTOR:g}",
        limit=math.log10(FACTOR),
        around=published,
        unit="decades",
        digits=2,
        signed=False,
    )
    return (larger,)


STUDY = Study(
    name="heatmap",
    title="map of the Hessian of one whole model, of its block and of its attention",
    source="Hessian paper, Figure 1",
    published=(
        "The blocks of the Hessian differ by orders of magnitude: value entries about 2e-5, query "
        "about 6e-7."
    ),
    settings=growth.draws(_SIZES),
    measure=measure,
    summarise=summarise,
    columns=("study", "map", "seed", "row", "column", "row_group", "column_group", "value"),
    revision=2,  # the whole model, and sizes over seeds
)
