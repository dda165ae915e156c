"""The blocks that the studies train, by name: the presets and edits of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hessblocks.blocks import (
    PRESETS,
    BlockConfig,
    Branch,
    Dense,
    Identity,
    Reparametrised,
    Weight,
    preset,
)
from hessblocks.errors import check_name


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Sizes of a block."""

    width: int
    """Entries of a token's vector."""
    heads: int
    """Attention heads."""
    mlp_width: int
    """Hidden width of the MLP."""


Maker = Callable[[Sizes], BlockConfig]
RESTRICTED_INITS = ("identity", "orthogonal")
BETAS = (0.1, 0.2, 0.5, 1.0)
"""Gains of the trainable part of values and projections."""
GAINED = "trainable gains"
MLP_GAINS = (0.5, 2.0)
"""Factors of the preset's initial MLP gain."""


def make_block(name: str, sizes: Sizes) -> BlockConfig:
    """The block of a variant.

    Returns:
        The block at these sizes.

    Raises:
        ArgumentError: an unknown name.
    """
    check_name("variant", name, VARIANTS)
    return VARIANTS[name](sizes)


def restricted(init: str, beta: float) -> str:
    """Name of the variant W = W_init + β ΔW for values and projections; W_init alone for β = 0."""
    return f"{init}, beta {beta:g}"


def from_preset(name: str, sizes: Sizes) -> BlockConfig:
    """A preset at these sizes."""
    return preset(name, width=sizes.width, heads=sizes.heads, mlp_width=sizes.mlp_width)


def values_and_projection(block: BlockConfig, weight: Weight, first: Weight) -> BlockConfig:
    """`weight` for all values and projections but the first layer's values, which are `first`."""
    attention = block.attention.replace(value=weight, projection=weight, first_value=first)
    return block.replace(attention=attention)


def _preset(name: str) -> Maker:
    return lambda sizes: from_preset(name, sizes)


def _restricted(init: str, beta: float) -> Maker:
    weight = Identity() if beta == 0 else Reparametrised(init=init, update_gain=beta)
    first = Reparametrised(init=init)
    return lambda sizes: values_and_projection(from_preset("skipless", sizes), weight, first)


def _gained(sizes: Sizes) -> BlockConfig:
    """Values and projections with trainable gains from α = 1, β = 0.2, in every layer."""
    weight = Reparametrised(init="identity", update_gain=0.2, trainable_gains=True)
    return values_and_projection(from_preset("skipless", sizes), weight, weight)


def _pre_ln_identity(sizes: Sizes) -> BlockConfig:
    return values_and_projection(from_preset("pre-ln", sizes), Identity(), Identity())


def _dense(init: str) -> Maker:
    """The skipless block with freely trainable values and projections from `init`."""

    def make(sizes: Sizes) -> BlockConfig:
        weight = Dense(init=init, std=sizes.width**-0.5) if init == "normal" else Dense(init=init)
        return values_and_projection(from_preset("skipless", sizes), weight, weight)

    return make


def _tied(sizes: Sizes) -> BlockConfig:
    block = _dense("orthogonal")(sizes)
    return block.replace(
        attention=block.attention.replace(projection=Dense(init="tied-orthogonal"))
    )


def _no_first_value(sizes: Sizes) -> BlockConfig:
    sas = from_preset("sas", sizes)
    return sas.replace(attention=sas.attention.replace(first_value=None))


def _no_mlp_skip(sizes: Sizes) -> BlockConfig:
    sas = from_preset("sas", sizes)
    return sas.replace(mlp_branch=sas.mlp_branch.replace(skip=0.0))


def _mlp_gain(factor: float) -> Maker:
    def make(sizes: Sizes) -> BlockConfig:
        sas = from_preset("sas", sizes)
        return sas.replace(mlp_branch=sas.mlp_branch.replace(gain=factor * sas.mlp_branch.gain))

    return make


def _without_skip(sizes: Sizes) -> BlockConfig:
    """Pre-LN without its attention skip, nothing put in its place."""
    return from_preset("pre-ln", sizes).replace(attention_branch=Branch(skip=0.0))


def _dense_projection(sizes: Sizes) -> BlockConfig:
    """SAS that keeps its projections."""
    sas = from_preset("sas", sizes)
    return sas.replace(attention=sas.attention.replace(projection=Dense()))


def _sas_p_with_skip(sizes: Sizes) -> BlockConfig:
    """SAS-P with the shared skip of the parallel block."""
    sas_p = from_preset("sas-p", sizes)
    return sas_p.replace(attention_branch=sas_p.attention_branch.replace(skip=1.0))


VARIANTS: dict[str, Maker] = {
    **{name: _preset(name) for name in PRESETS},
    **{
        restricted(init, beta): _restricted(init, beta)
        for init in RESTRICTED_INITS
        for beta in BETAS
    },
    restricted("identity", 0): _restricted("identity", 0),
    GAINED: _gained,
    "pre-ln, identity values": _pre_ln_identity,
    "normal values": _dense("normal"),
    "orthogonal values": _dense("orthogonal"),
    "tied values": _tied,
    "identity values": _dense("identity"),
    "sas, no first values": _no_first_value,
    "sas, no MLP skip": _no_mlp_skip,
    **{f"sas, MLP gain x{factor:g}": _mlp_gain(factor) for factor in MLP_GAINS},
    "pre-ln, no attention skip": _without_skip,
    "sas, dense projection": _dense_projection,
    "sas-p, with skip": _sas_p_with_skip,
}
"""Name → block of given sizes."""
