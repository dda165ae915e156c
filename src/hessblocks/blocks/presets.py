"""Presets: named edits of the plain Pre-LN block, one removal at a time where they can.

Source: He & Hofmann (2024), sections 3 and 4; `op`: He et al. (2024), arXiv 2405.19279.
"""

from collections.abc import Callable
from typing import Any

from hessblocks.blocks.attention import Attention
from hessblocks.blocks.block_config import BlockConfig
from hessblocks.blocks.gains import Branch, Shaping
from hessblocks.blocks.mlp import MLP
from hessblocks.blocks.norms import NoNorm, RMSNorm
from hessblocks.blocks.positions import RotaryPosition
from hessblocks.blocks.weights import Dense, Identity, Reparametrised
from hessblocks.errors import check_name


def _mlp_gain(block: BlockConfig) -> float:
    """Choose β_FF before depth scaling: 0.1 at 18 layers for an MLP of 4 widths, 0.2 for 2."""
    return 1.7 * block.width / block.resolved_mlp_width


def _post_ln(block: BlockConfig) -> BlockConfig:
    return block.replace(norm_placement="post", final_norm=NoNorm())


def _parallel(block: BlockConfig) -> BlockConfig:
    return block.replace(layout="parallel", mlp_branch=Branch(skip=0.0))


def _skipless(block: BlockConfig) -> BlockConfig:
    return block.replace(
        attention=Attention(shaping=Shaping(), query=Dense(init="zeros")),
        attention_branch=Branch(skip=0.0, trainable=True),
        mlp_branch=Branch(gain=_mlp_gain(block), trainable=True, over_sqrt_depth=True),
    )


def _v_skipinit(block: BlockConfig) -> BlockConfig:
    skipless = _skipless(block)
    drawn = Dense(init="orthogonal")
    return skipless.replace(attention=skipless.attention.replace(value=drawn, projection=drawn))


def _sas(block: BlockConfig) -> BlockConfig:
    skipless = _skipless(block)
    own = Reparametrised(init="identity", trainable_gains=True)
    attention = skipless.attention.replace(value=Identity(), first_value=own, projection=Identity())
    return skipless.replace(attention=attention)


def _sas_p(block: BlockConfig) -> BlockConfig:
    sas = _sas(block)
    return sas.replace(layout="parallel", mlp_branch=sas.mlp_branch.replace(skip=0.0))


def _sas_p_no_norm(block: BlockConfig) -> BlockConfig:
    return _sas_p(block).replace(norm=NoNorm(), first_norm=block.norm)


def _op(block: BlockConfig) -> BlockConfig:
    branch = Branch(trainable=True, over_sqrt_depth=True)
    return block.replace(
        norm=NoNorm(),
        first_norm=block.norm,
        attention=Attention(query_key_norm=RMSNorm()),
        attention_branch=branch,
        mlp_branch=branch,
    )


def _modern(block: BlockConfig) -> BlockConfig:
    grouped = block.heads // 4 if block.heads % 4 == 0 else block.heads
    return block.replace(
        key_value_heads=grouped,
        # three matrices of 8/3 widths hold as much as two of 4
        mlp_width=block.mlp_width or 8 * block.width // 3,
        position=RotaryPosition(),
        attention=Attention(query_key_norm=RMSNorm()),
        mlp=MLP(activation="silu", gated=True),
    )


_PRESETS: dict[str, tuple[str, Callable[[BlockConfig], BlockConfig]]] = {
    "pre-ln": ("skips and norms around both sub-blocks", lambda block: block),
    "post-ln": ("norm after each sum", _post_ln),
    "parallel": ("attention and MLP side by side, one norm and skip", _parallel),
    "skipless": ("no attention skip; shaped attention", _skipless),
    "v-skipinit": ("skipless; orthogonal values and projection", _v_skipinit),
    "sas": ("skipless; no values, no projection", _sas),
    "sas-p": ("sas; parallel, no MLP skip", _sas_p),
    "sas-p-no-norm": ("sas-p; no norms but the first and the last", _sas_p_no_norm),
    "op": ("pre-ln; no norms but QK-norm, first and last; small branch gains", _op),
    "modern": ("pre-ln; RoPE, grouped queries, QK-norm, SwiGLU", _modern),
}
"""Preset → its difference from pre-ln in words, and its edit of the sized Pre-LN block."""

PRESETS: tuple[str, ...] = tuple(_PRESETS)
JOIN = "+"
"""Between the presets of a pattern."""


def preset(name: str, **fields: Any) -> BlockConfig:
    """Build the block of a preset.

    Args:
        name: one of `PRESETS`.
        **fields: fields of `BlockConfig`. Sizes and position are set before the preset's edits,
            which may depend on them; every field but sizes is set after them.

    Returns:
        The block's configuration.

    Raises:
        ArgumentError: unknown preset or field (the known ones are listed), or parts that exclude
            each other.

    Examples:
        >>> preset("sas-p", width=64, heads=4).layout
        'parallel'
    """
    check_name("preset", name, PRESETS)
    sizes = {key: fields.pop(key) for key in ("width", "heads", "mlp_width") if key in fields}
    place = {"position": fields["position"]} if "position" in fields else {}
    base = BlockConfig().replace(**sizes, **place)
    _, edit = _PRESETS[name]
    return edit(base).replace(**fields)


def pattern_names(name: str) -> list[str]:
    """Split a pattern into its presets, which layers take in turns; one preset is a pattern too.

    Returns:
        Their names.

    Examples:
        >>> pattern_names("pre-ln+sas-p")
        ['pre-ln', 'sas-p']
    """
    return name.split(JOIN)


def summary(name: str) -> str:
    """Describe a preset in one line.

    Returns:
        Words without the name.

    Raises:
        ArgumentError: unknown preset.

    Examples:
        >>> summary("sas")
        'skipless; no values, no projection'
    """
    check_name("preset", name, PRESETS)
    return _PRESETS[name][0]
