"""Remove parts of a pretrained model: by the plan of `hessblocks simplify`, or other methods.

For each number of layers a method yields a model that lacks at least as many parameters.

Letters: L layers, U units.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import ceil
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from hessblocks.models import HessblocksForCausalLM
from hessblocks.simplify import Candidate, LayerChange, Place, edited, one_pass, priced_plan
from hessblocks_studies.pretrained.pretrained_ground import Ground

Method = Callable[[Ground, Sequence[int], int], Iterator[HessblocksForCausalLM]]
"""Function from a model, increasing numbers of layers and a seed to one model per number."""
PLAN, BESIDE = "plan", "units by activation"


def plan(ground: Ground, sizes: Sequence[int], _: int) -> Iterator[HessblocksForCausalLM]:
    """Remove the parts with the lowest price, with one pass of refits; the table is cached."""
    with ground.table() as table:
        for count in sizes:
            plan = priced_plan(ground.original, table.rows, _share(ground, count))
            yield one_pass(ground.original, ground.text, plan.changes)


def last_layers(ground: Ground, sizes: Sequence[int], _: int) -> Iterator[HessblocksForCausalLM]:
    """Remove the last layers, or the layers before the last one."""
    depth = ground.original.config.depth
    for count in sizes:
        ends = (depth, depth - 1)
        yield ground.better(*(ground.without(range(end - count, end)) for end in ends))


def similar_states(ground: Ground, sizes: Sequence[int], _: int) -> Iterator[HessblocksForCausalLM]:
    """Remove the layers that change the states' direction least, singly or as neighbours."""
    turns = [_turn(ground, layer, layer + 1) for layer in range(ground.original.config.depth)]
    for count in sizes:
        alone = sorted(range(len(turns)), key=turns.__getitem__)[:count]
        starts = range(len(turns) - count + 1)
        start = min(starts, key=lambda one: _turn(ground, one, one + count))
        runs = (sorted(alone), range(start, start + count))
        yield ground.better(*map(ground.without, runs))


def magnitude(ground: Ground, sizes: Sequence[int], _: int) -> Iterator[HessblocksForCausalLM]:
    """Remove the units with the smallest norms, equally many per layer or in one ranking."""
    sizes_of_units = torch.stack([_norms(layer.mlp) for layer in ground.original.model.layers])
    ranked = sizes_of_units / sizes_of_units.mean(1, keepdim=True)
    for count in sizes:
        gone = _units(ground, count)
        each = ceil(gone / len(ranked))
        evenly = [row.topk(each, largest=False).indices for row in sizes_of_units]
        lowest = ranked.flatten().topk(gone, largest=False).indices
        width = ranked.shape[1]
        over_all = [lowest[lowest // width == layer] % width for layer in range(len(ranked))]
        yield ground.better(_without_units(ground, evenly), _without_units(ground, over_all))


def at_random(ground: Ground, sizes: Sequence[int], seed: int) -> Iterator[HessblocksForCausalLM]:
    """Remove random layers, or random units of each layer."""
    depth, draw = ground.original.config.depth, random.Random(seed)
    width = ground.original.config.blocks[0].resolved_mlp_width
    for count in sizes:
        each = ceil(_units(ground, count) / depth)
        units = [torch.tensor(draw.sample(range(width), each)) for _ in range(depth)]
        layers = sorted(draw.sample(range(depth), count))
        yield ground.better(ground.without(layers), _without_units(ground, units))


def by_activation(ground: Ground, sizes: Sequence[int], _: int) -> Iterator[HessblocksForCausalLM]:
    """Remove the units that contribute least on the text, equally many per layer; one pass."""
    depth = ground.original.config.depth
    for count in sizes:
        change = LayerChange(units=ceil(_units(ground, count) / depth))
        yield one_pass(ground.original, ground.text, dict.fromkeys(range(depth), change))


METHODS: Mapping[str, Method] = {
    "last layers": last_layers,
    "similar states": similar_states,
    "magnitude": magnitude,
    "random": at_random,
    BESIDE: by_activation,
    PLAN: plan,
}


def _share(ground: Ground, layers: int) -> float:
    """Compute the share of the parameters in a number of layers."""
    every = sum(parameter.numel() for parameter in ground.original.parameters())
    return layers * _size(ground.original.model.layers[0]) / every


def _units(ground: Ground, layers: int) -> int:
    """Compute the number of units with as many parameters as a number of layers."""
    mlp = ground.original.model.layers[0].mlp
    return ceil(layers * _size(ground.original.model.layers[0]) / (_size(mlp) / len(_norms(mlp))))


def _size(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _turn(ground: Ground, start: int, end: int) -> float:
    """Compute 1 − the mean cosine between the inputs of two layers."""
    one, other = (ground.text.states[place] for place in (start, end))
    return 1 - float(F.cosine_similarity(one, other, dim=-1).mean())


@torch.no_grad()
def _norms(mlp: Any) -> Float[Tensor, " U"]:
    """Compute the product of the norms of each unit's weights."""
    norms: Tensor = mlp.input.weight.norm(dim=1) * mlp.output.weight.norm(dim=0)
    return norms * mlp.gate.weight.norm(dim=1) if mlp.gate is not None else norms


def _without_units(ground: Ground, gone: Sequence[Tensor]) -> HessblocksForCausalLM:
    """Remove units of each layer without other changes."""

    def taken(index: int) -> Candidate:
        at = Place(model=ground.original, index=index, text=ground.text)
        width = at.block.resolved_mlp_width
        kept = torch.tensor(sorted({*range(width)} - {*gone[index].tolist()}))
        state = {name: own for name, own in at.state.items() if name.startswith("mlp.")}
        cut = {n: w[:, kept] if "output" in n else w[kept] for n, w in state.items()}
        return at.candidate("units", at.block.replace(mlp_width=len(kept)), cut)

    return edited(ground.original, *map(taken, range(len(gone))))
