"""Replace value and projection by the identity: shaped attention (αI + βA − γC) X, gains refitted.

Source: He & Hofmann (2024), section 4.2. Keys of grouped heads are repeated, since each head mixes
its own slice of the hidden states.
"""

import torch
from torch import Tensor

from hessblocks.blocks import Identity, Shaping
from hessblocks.simplify.least_squares import NormalEquations
from hessblocks.simplify.place import Candidate, Place

NAMES = ("alpha", "beta", "gamma")


@torch.no_grad()
def identity_value(at: Place) -> Candidate | None:
    """Remove values and projection; each head gets three gains."""
    block = at.block
    if not at.dense("attention.key", "attention.value", "attention.projection"):
        return None
    part, width = block.attention, block.resolved_head_width
    if part.shaping is not None or part.gate is not None or block.heads * width != block.width:
        return None
    if part.query_key == "one-matrix":
        return None
    new = part.replace(value=Identity(), projection=Identity(), shaping=Shaping())
    state, groups = at.state, block.resolved_key_value_heads
    for end in ("weight", "bias"):
        if (own := state.get(f"attention.key.{end}")) is not None:
            by_head = own.unflatten(0, (groups, width))
            state[f"attention.key.{end}"] = by_head.repeat_interleave(
                block.heads // groups, dim=0
            ).flatten(0, 1)
    made = block.replace(attention=new, key_value_heads=None)
    like = state["attention.key.weight"]
    features = []
    for name in NAMES:
        gains = {f"attention.gains.{one}": like.new_zeros(block.heads) for one in NAMES}
        gains[f"attention.gains.{name}"] += 1
        features.append(at.projection_pairs(at.built(made, {**state, **gains}))[1])
    _, wanted = at.projection_pairs(at.layer)
    fitted = _gains(features, wanted, block.heads).to(like)
    state |= {f"attention.gains.{name}": own for name, own in zip(NAMES, fitted, strict=True)}
    return at.candidate("value and projection = identity", made, state)


def _gains(features: list[Tensor], wanted: Tensor, heads: int) -> Tensor:
    """Fit three gains per head by least squares over tokens and entries; shape (3, heads)."""
    by_head = [one.unflatten(1, (heads, -1)) for one in (*features, wanted)]
    found = []
    for head in range(heads):
        *x, y = (one[:, head].flatten() for one in by_head)
        start = y.new_zeros(3, 1)
        found.append(NormalEquations().add(torch.stack(x, 1), y[:, None]).solve(start)[:, 0])
    return torch.stack(found, 1)
