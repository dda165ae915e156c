"""Remove a group of heads with shared keys and values, or a quarter of the MLP's units."""

import torch
from torch import Tensor

from hessblocks.simplify.least_squares import Refit
from hessblocks.simplify.place import Candidate, Place

READ = ("query", "key", "value")
UNITS = 0.25
"""Default share of the units that is removed at a time."""
OUTPUT, PROJECTION = "mlp.output", "attention.projection"
SINK = "attention.sink.scores"


def heads(at: Place) -> Candidate | None:
    """Remove the group of heads whose loss the refitted projection corrects best."""
    block, places = at.block, [f"attention.{name}" for name in READ]
    groups, width = block.resolved_key_value_heads, block.resolved_head_width
    part = block.attention
    if not at.dense(*places, PROJECTION) or part.shaping is not None or part.gate is not None:
        return None
    if groups == 1 or part.query_key == "one-matrix" or block.position.biased:
        return None  # ALiBi has a slope per head
    mixed, wanted = at.projection_pairs(at.layer)
    equations = Refit(at.with_ones(PROJECTION, mixed), wanted)
    each, found = block.heads // groups, []
    for group in range(groups):
        kept = _others(group, groups, each * width).to(mixed.device)
        new = at.refitted(PROJECTION, equations, kept)
        rows = [
            new[f"{PROJECTION}.weight"].T,
            *(one[None] for n, one in new.items() if "bias" in n),
        ]
        inputs = torch.cat([kept, kept.new_tensor([mixed.shape[1]])])[: sum(map(len, rows))]
        found.append((equations.whole.error(torch.cat(rows), inputs), group, kept, new))
    _, group, kept, new = min(found, key=lambda one: one[0])
    state = at.state
    for name, place in zip(READ, places, strict=True):
        rows_kept = kept if name == "query" else _others(group, groups, width).to(kept)
        state |= _cut(state, place, rows_kept)
    if part.sink is not None:
        state[SINK] = state[SINK][_others(group, groups, each).to(kept)]
    left = groups - 1
    made = block.replace(
        heads=each * left, key_value_heads=None if each == 1 else left, head_width=width
    )
    return at.candidate("heads", made, {**state, **new})


def units(at: Place, share: float = UNITS) -> Candidate | None:
    """Remove a share of the MLP's units, those with the smallest output on the text."""
    read = ["mlp.input", *(["mlp.gate"] if at.block.mlp.gated else [])]
    gone = int(share * at.block.resolved_mlp_width)
    if at.block.sub_blocks == "attention" or not at.dense(*read, OUTPUT) or not gone:
        return None
    hidden, wanted = at.output_pairs()
    equations = Refit(at.with_ones(OUTPUT, hidden), wanted)
    gram = equations.whole.gram
    assert gram is not None
    count = hidden.shape[1]
    added = gram.diagonal()[:count] * at.layer.mlp.output.weight.double().square().sum(0)
    kept = added.topk(count - gone).indices.sort().values
    new, state = at.refitted(OUTPUT, equations, kept), at.state
    for name in read:
        state |= _cut(state, name, kept)
    made = at.block.replace(mlp_width=len(kept))
    return at.candidate("mlp units", made, {**state, **new})


def _cut(state: dict[str, Tensor], name: str, kept: Tensor) -> dict[str, Tensor]:
    """Return weight and bias of a matrix, with only the kept outputs."""
    ends = (f"{name}.weight", f"{name}.bias")
    return {end: state[end][kept] for end in ends if end in state}


def _others(group: int, groups: int, width: int) -> Tensor:
    """Return the indices of all entries except those of one group."""
    every = torch.arange(groups * width)
    return every[every // width != group]
