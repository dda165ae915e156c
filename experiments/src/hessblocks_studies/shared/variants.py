"""Define the blocks that the studies train: presets and edits of them, with fixed initial std."""

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

from hessblocks import blocks
from hessblocks.errors import check_name

Maker = Callable[[Mapping[str, int]], blocks.BlockConfig]
"""Function from sizes by name to a block."""
RESTRICTED_INITS = ("identity", "orthogonal", "tied")
"""Initial values of W_V and W_P; tied: W_P = W_Vᵀ in each layer, with orthogonal W_V."""
BETAS = (0.1, 0.2, 0.5, 1.0)
"""Gains β of the trainable part of values and projections."""
GAINED = "trainable gains"
"""Skipless block with values and projections α W_init + β ΔW; initially α = 1, β = 0.2, and W_init
is the identity."""
GAINED_PARALLEL = f"{GAINED}, parallel"
"""Block `GAINED` without an MLP skip, in the parallel layout."""
GAINED_ORTHOGONAL = f"{GAINED}, orthogonal"
"""Block `GAINED` with random orthogonal W_init."""
GAINED_WITH_SKIP = f"{GAINED}, pre-ln"
"""Values and projections of `GAINED` in a block with an attention skip."""
VALUE_SKIPINIT = "V-SkipInit attention"
"""αI + βA, initially α = 1, β = 0 (eq. 4), instead of shaped attention."""
SLOPES = (0.2, 0.8)
"""Slopes of LeakyReLU below zero; 0.8 is 1 - 1/√18, the recommendation of signal propagation for 18
layers."""
ZERO_QUERIES = ", zero queries"
"""Suffix of a preset with zero initial queries, as in the simplified blocks."""
BASES = ("pre-ln", f"pre-ln{ZERO_QUERIES}")
"""Blocks that the simplified blocks are compared with. The second has zero queries, too, so that
only the block differs."""
ATTENTION_GAINS = (0.1, 0.3)
"""Gains of an attention branch with identity values, beside its skip."""
MLP_GAINS = (0.5, 2.0)
"""Factors of the preset's initial MLP gain."""


def make_block(name: str, **sizes: int) -> blocks.BlockConfig:
    """Build the block of a variant, with initial standard deviation 0.02 at every width.

    Args:
        name: name of the variant.
        **sizes: width, heads and mlp_width.

    Returns:
        The block at these sizes.

    Raises:
        ArgumentError: an unknown name.
    """
    check_name("variant", name, VARIANTS)
    return blocks.with_start(VARIANTS[name](sizes), "fixed")


@functools.cache
def best_start(variant: str, width: int) -> float | None:
    """Return the best initial standard deviation of a variant's embeddings.

    Source: the tuning of `trial` at width 64 with one seed, for pre-ln, parallel, sas and
    sas-p. For v-skipinit there is no difference. For other blocks, such as post-ln, op and
    modern, the value is a guess.

    Args:
        variant: name in `VARIANTS`.
        width: width of the model.

    Returns:
        1/√width for blocks with an attention skip; otherwise None, which means 0.02.
    """
    sizes = {"width": 64, "heads": 4, "mlp_width": 256}
    beside_a_skip = make_block(variant, **sizes).attention_branch.has_skip
    return 1 / math.sqrt(width) if beside_a_skip else None


def restricted(init: str, beta: float) -> str:
    """Name the variant W = W_init + β ΔW of values and projections; W = W_init if β = 0."""
    return f"{init}, beta {beta:g}"


def with_attention_gain(gain: float) -> str:
    """Name pre-ln with identity values and a gain of its attention branch."""
    return f"pre-ln, identity values, attention gain {gain:g}"


def _with_attention_gain(gain: float) -> Maker:
    attention = dict.fromkeys(("value", "projection", "first_value"), blocks.Identity())
    return _edited("pre-ln", attention=attention, attention_branch={"gain": gain})


def _edited(name: str, **parts: Mapping[str, Any]) -> Maker:
    """Edit fields of a preset's parts, given as slot → {field: value}."""

    def make(sizes: Mapping[str, Any]) -> blocks.BlockConfig:
        block = blocks.preset(name, **sizes)
        changed = {slot: getattr(block, slot).replace(**parts[slot]) for slot in parts}
        return block.replace(**changed)

    return make


def _values(name: str, weight: blocks.Weight, first: blocks.Weight | None = None) -> Maker:
    """Set all values and projections of a preset to `weight`; `first`: the first layer's values."""
    part = {"value": weight, "projection": weight, "first_value": first or weight}
    return _edited(name, attention=part)


def _restricted(init: str, beta: float) -> Maker:
    first = blocks.Reparametrised(init="orthogonal" if init == "tied" else init)
    if beta == 0:
        return _values("skipless", blocks.Identity(), first=first)
    value = first.replace(update_gain=beta)
    projection = value.replace(init="tied-orthogonal") if init == "tied" else value
    weights = {"value": value, "projection": projection, "first_value": first}
    return _edited("skipless", attention=weights)


def _mlp_gain(factor: float) -> Maker:
    def make(sizes: Mapping[str, Any]) -> blocks.BlockConfig:
        gain = factor * blocks.preset("sas", **sizes).mlp_branch.gain
        return _edited("sas", mlp_branch={"gain": gain})(sizes)

    return make


_ORTHOGONAL = blocks.Dense(init="orthogonal")
_TIED = {
    "value": _ORTHOGONAL,
    "projection": blocks.Dense(init="tied-orthogonal"),
    "first_value": _ORTHOGONAL,
}

_VALUE_SKIPINIT = blocks.Shaping(alpha=1.0, beta=0.0, centred=False)


def _leaky(slope: float) -> Maker:
    mlp = {"activation": "leaky-relu", "negative_slope": slope}
    return _edited("sas", mlp_branch={"skip": 0.0}, mlp=mlp)


def _gained(name: str, init: str = "identity") -> Maker:
    return _values(name, blocks.Reparametrised(init=init, update_gain=0.2, trainable_gains=True))


VARIANTS: dict[str, Maker] = {
    **{name: _edited(name) for name in blocks.PRESETS},
    **{
        restricted(init, beta): _restricted(init, beta)
        for init in RESTRICTED_INITS
        for beta in BETAS
    },
    restricted("identity", 0): _restricted("identity", 0),
    GAINED: _gained("skipless"),
    GAINED_PARALLEL: _gained("sas-p"),
    GAINED_ORTHOGONAL: _gained("skipless", "orthogonal"),
    GAINED_WITH_SKIP: _gained("pre-ln"),
    **{
        name + ZERO_QUERIES: _edited(name, attention={"query": blocks.Dense(init="zeros")})
        for name in ("pre-ln", "parallel")
    },
    "pre-ln, identity values": _values("pre-ln", blocks.Identity()),
    **{with_attention_gain(gain): _with_attention_gain(gain) for gain in ATTENTION_GAINS},
    "normal values": lambda sizes: _values(
        "skipless", blocks.Dense(init="normal", std=sizes["width"] ** -0.5)
    )(sizes),
    "orthogonal values": _values("skipless", _ORTHOGONAL),
    "tied values": _edited("skipless", attention=_TIED),
    "identity values": _values("skipless", blocks.Dense(init="identity")),
    **{
        f"{name}, no first values": _edited(name, attention={"first_value": None})
        for name in ("sas", "sas-p")
    },
    **{
        f"{name}, {VALUE_SKIPINIT}": _edited(name, attention={"shaping": _VALUE_SKIPINIT})
        for name in ("sas", "sas-p")
    },
    "sas, no MLP skip": _edited("sas", mlp_branch={"skip": 0.0}),
    **{f"sas, no MLP skip, LeakyReLU {slope:g}": _leaky(slope) for slope in SLOPES},
    **{f"sas, MLP gain x{factor:g}": _mlp_gain(factor) for factor in MLP_GAINS},
}
"""Name → function from sizes to the block."""
