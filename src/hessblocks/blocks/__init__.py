"""Transformer blocks assembled from parts, and the presets of the papers."""

from hessblocks.blocks.attention import Attention, SelfAttention
from hessblocks.blocks.block import Block
from hessblocks.blocks.block_config import (
    BlockConfig,
    Slots,
    UnfitPartsError,
    check_positive,
    part_of,
    placed,
    slot_pairs,
    with_slots,
)
from hessblocks.blocks.gains import Branch, ResidualSum, ShapedGains, Shaping, Sink
from hessblocks.blocks.kernels import Context, Kernel, causal_mask, fused_kernel, matrix_kernel
from hessblocks.blocks.mlp import MLP
from hessblocks.blocks.norms import Derf, DyT, LayerNorm, NoNorm, Norm, RMSNorm
from hessblocks.blocks.parts import BlockPart
from hessblocks.blocks.positions import (
    ALiBiPosition,
    LearnedPosition,
    NoPosition,
    Position,
    RotaryPosition,
    SinusoidalPosition,
)
from hessblocks.blocks.presets import (
    JOIN,
    PRESETS,
    parted,
    pattern_names,
    preset,
    summary,
    with_start,
)
from hessblocks.blocks.shaped import centre
from hessblocks.blocks.weights import (
    Dense,
    Identity,
    Reparametrised,
    ReparametrisedLinear,
    Shared,
    SharedLinear,
    Weight,
)

__all__ = [
    "MLP",
    "PRESETS",
    "ALiBiPosition",
    "Attention",
    "BlockConfig",
    "Branch",
    "Dense",
    "Derf",
    "DyT",
    "Identity",
    "LayerNorm",
    "LearnedPosition",
    "NoNorm",
    "NoPosition",
    "Norm",
    "Position",
    "RMSNorm",
    "Reparametrised",
    "RotaryPosition",
    "Shaping",
    "Shared",
    "Sink",
    "SinusoidalPosition",
    "UnfitPartsError",
    "Weight",
    "preset",
    "with_start",
]
