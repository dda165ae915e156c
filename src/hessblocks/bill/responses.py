"""Measure how the output of each attention responds to rounded queries and keys.

A softmax is no linear function: a head saturates by itself, or attends elsewhere, and errors of the
tokens of a head are not independent there. Gradients see neither. Letters: U pieces of text, B
sequences, G heads of a tensor, H heads of the output, S tokens, K width of a head.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils._pytree import tree_map_only

from hessblocks.attention_calls import wrapped_attention
from hessblocks.bill.grids import Grid
from hessblocks.bill.tapping import TENSORS
from hessblocks.curvature import Batch, Problem, plain_model
from hessblocks.linalg import working_dtype

TINY = 0.1
"""Share of a rounding that stands for an infinitesimal one."""
LOOKED_AT, LONG = 8, 256
"""Pieces of text, or up to twice as many, on which something is measured; fewer of more tokens than
the second."""
SIGNS = 2
"""Random signs of errors on each piece."""


def spread(pieces: Sequence[Any], tokens: float, least: int) -> slice:
    """Choose evenly spaced pieces of a text on which to measure, at least so many if there are."""
    few = int(LOOKED_AT * LONG * len(pieces) // max(1, tokens))
    step = max(1, len(pieces) // max(least, min(LOOKED_AT, few)))
    return slice(step // 2, None, step)


def responses(
    problem: Problem,
    grids: Mapping[str, Sequence[Grid]],
    shapes: Mapping[str, Sequence[int]],
    rows: Sequence[Batch],
) -> dict[tuple[str, Grid], Float[Tensor, "3 U G"]]:
    """Measure what rounding does to the output of attention, and what small errors would do.

    Args:
        problem: model and data.
        grids: tap → grids.
        shapes: tap → heads and their width.
        rows: some pieces of the data.

    Returns:
        For each tap of queries or keys and each grid: Σ ‖Δo‖² of each piece and head, with Δo the
        change of its output when only this tensor is rounded; 100 times that of a tenth of the same
        errors with random signs; and 10,000 times that of a hundredth.

    Cost: a forward pass over the rows, and four calls of the layer's attention for each grid.
    """
    names = {module: name for name, module in plain_model(problem.model).named_modules()}
    found: dict[tuple[str, Grid], Tensor] = {}
    owners: dict[int, tuple[Tensor, str]] = {}  # layers may share keys

    def attend(
        row: int, function: Any, module: Any, tensors: Any, keywords: dict[str, Any], own: bool
    ) -> Any:
        for place, kind in enumerate(TENSORS[:2]):
            old: Tensor = tensors[place]
            _, tap = owners.setdefault(id(old), (old, f"{names.get(module)} {kind}"))
            if (old.shape[1], old.shape[3]) != shapes.get(tap):
                continue
            mask = rows[row].keywords.get("attention_mask")
            precise, named = tree_map_only(Tensor, _precise, (tensors, keywords))
            attention = partial(_attended, partial(function, module), precise, named, place, mask)
            before, x = attention(0.0), precise[place]
            draw = torch.Generator().manual_seed(row)  # equal signs for all grids
            signs = [torch.randint(2, x.shape, generator=draw).to(x) * 2 - 1 for _ in range(SIGNS)]
            for grid in grids[tap]:
                delta = grid.new(x) - x
                steps = [TINY * sign * delta for sign in signs]
                steps += [delta, TINY * steps[0]]
                *small, full, tiny = (_moved(before, attention(step), x) for step in steps)
                few = torch.stack(small).mean(0) / TINY**2
                sums = found.setdefault((tap, grid), few.new_zeros(3, len(rows), len(few)))
                sums[:, row] += torch.stack([full, few, tiny / TINY**4])
        return function(module, *tensors, **keywords)

    with problem.computing(), torch.no_grad():
        for row, batch in enumerate(rows):
            owners.clear()
            with wrapped_attention(partial(attend, row)):
                problem.forward(batch, problem.parameters, twice=False)
    return found


def _attended(
    function: Any, tensors: Any, keywords: Any, place: int, mask: Any, step: Tensor | float
) -> Float[Tensor, "B S H K"]:
    """Compute the output of attention with one tensor changed; padding is 0."""
    tensors = (*tensors[:place], tensors[place] + step, *tensors[place + 1 :])
    output: Tensor = function(*tensors, **keywords)[0]
    if isinstance(mask, Tensor) and mask.shape == output.shape[:2]:
        output = output * mask[..., None, None]
    return output


def _moved(before: Tensor, after: Tensor, x: Tensor) -> Float[Tensor, " G"]:
    """Sum squared changes of outputs, by head of x."""
    by_head = (after - before).double().square().sum((0, 1, 3))
    return by_head.view(x.shape[1], -1).sum(1).cpu()


def _precise(x: Tensor) -> Tensor:
    return x.to(working_dtype(x.dtype)) if x.is_floating_point() else x
