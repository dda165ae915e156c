"""Presets: named edits of the Pre-LN block, each of which removes one component if possible.

Source: He & Hofmann (2024), sections 3 and 4; `op`: He et al. (2024), arXiv 2405.19279.
"""

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import Any

from hessblocks.blocks.attention import Attention
from hessblocks.blocks.block_config import SIZES, BlockConfig, Slots, placed, slot_pairs, with_slots
from hessblocks.blocks.block_fields import OVER_WIDTH
from hessblocks.blocks.gains import Branch, Shaping
from hessblocks.blocks.mlp import MLP
from hessblocks.blocks.norms import NoNorm, RMSNorm
from hessblocks.blocks.parts import BlockPart
from hessblocks.blocks.weights import FAN_IN, FIXED, GAIN, Dense, Identity, Reparametrised
from hessblocks.errors import ArgumentError, check_name


def _mlp_gain(block: BlockConfig) -> float:
    """Choose β_FF before depth scaling (18 layers: 0.1 for mlp_width = 4 · width, 0.2 for half)."""
    return 1.7 * block.width / block.resolved_mlp_width


def _zero_queries(block: BlockConfig) -> BlockConfig:
    return block.replace(attention=Attention(query=Dense(init="zeros")))


def _post_ln(block: BlockConfig) -> BlockConfig:
    return block.replace(norm_placement="post", final_norm=NoNorm())


def _parallel(block: BlockConfig) -> BlockConfig:
    return block.replace(layout="parallel", mlp_branch=Branch(skip=0.0))


def _skipless(block: BlockConfig) -> BlockConfig:
    return block.replace(
        attention=Attention(shaping=Shaping(), query=Dense(init="zeros")),
        attention_branch=Branch(skip=0.0, trainable=True),
        embedding_std=OVER_WIDTH,
        mlp_branch=Branch(gain=_mlp_gain(block), trainable=True, over_sqrt_depth=True),
    )


def _v_skipinit(block: BlockConfig) -> BlockConfig:
    skipless = _skipless(block)
    drawn = Dense(init="orthogonal")
    return skipless.replace(attention=skipless.attention.replace(value=drawn, projection=drawn))


def _sas(block: BlockConfig) -> BlockConfig:
    skipless = _skipless(block)
    reparametrised = Reparametrised(init="identity", trainable_gains=True)
    attention = skipless.attention.replace(
        value=Identity(), first_value=reparametrised, projection=Identity()
    )
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
        # 3 matrices with 8/3 · width hidden units have as many weights as 2 with 4 · width
        mlp_width=block.mlp_width or 8 * block.width // 3,
        attention=Attention(query_key_norm=RMSNorm()),
        mlp=MLP(activation="silu", gated=True),
    )


_PRESETS: dict[str, tuple[str, Callable[[BlockConfig], BlockConfig]]] = {
    "pre-ln": ("skips and norms around both sub-blocks", lambda block: block),
    "pre-ln-zero": ("pre-ln; zero queries, as the simplified blocks", _zero_queries),
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
"""Preset → its summary, and its edit of a Pre-LN block whose sizes are set."""

PRESETS: tuple[str, ...] = tuple(_PRESETS)
"""Names that `preset` and `build` accept."""
JOIN = "+"
"""Separator between the presets of a pattern."""
STARTS = ("scaled", "fixed")
"""Initialisations of matrices and embeddings; see `with_start`."""


def preset(
    name: str,
    *,
    start: str = "scaled",
    slots: Slots = (),
    given: Mapping[str, BlockConfig] | None = None,
    **fields: Any,
) -> BlockConfig:
    """Build the block configuration of a preset or of a variant.

    Args:
        name: one of `PRESETS`, optionally with slots in brackets: sas[mlp.gated=true]. Brackets may
            set the sizes heads and mlp_width, but not width.
        start: scaled or fixed; see `with_start`.
        slots: further slots by path; see `with_slots`.
        given: additional blocks by name. Such a block keeps its heads and mlp_width; its width must
            be the requested width.
        **fields: fields of `BlockConfig`. Sizes and position are set before the preset's edit,
            which may depend on them; all fields except sizes are set after it.

    Returns:
        The block's configuration.

    Raises:
        ArgumentError: unknown preset or field (the message lists the known ones), or incompatible
            parts.

    Examples:
        >>> import hessblocks as hb
        >>> hb.preset("sas-p", width=64, heads=4).layout
        'parallel'
        >>> hb.preset("sas[mlp.gated=true,mlp_width=512]").mlp_width
        512
    """
    base, edits = parted(name)
    others = given or {}
    check_name("preset", base, [*PRESETS, *others])
    sizes = {key: fields.pop(key) for key in SIZES if key in fields}
    if base in others:
        width = others[base].width
        if sizes.get("width", width) != width:
            raise ArgumentError(
                f"width: {base} has a width of {width}, got {sizes['width']}; give all blocks one"
            )
        sizes = {}
    changed = {path: value for path, value in edits if path in SIZES[1:]}
    sizes |= {path: int(text) if text.isdigit() else text for path, text in changed.items()}
    rest = [*slot_pairs(slots), *(pair for pair in edits if pair[0] not in changed)]
    try:
        block = others.get(base, BlockConfig())
        fields = placed(block, rest, fields)
        if base in others:
            block = block.replace(**sizes, **fields)
        else:
            position = {"position": fields["position"]} if "position" in fields else {}
            _, edit = _PRESETS[base]
            block = edit(block.replace(**sizes, **position)).replace(**fields)
        return with_slots(with_start(block, start), rest)
    except ArgumentError as error:
        if not edits:
            raise
        raise ArgumentError(f"{name}: {error}") from error


def parted(name: str) -> tuple[str, list[tuple[str, Any]]]:
    """Split the name of a variant into its preset and the slots in brackets.

    Returns:
        The preset's name, and pairs of a slot's path and value, both as text.

    Raises:
        ArgumentError: the brackets are not closed or contain no slots.

    Examples:
        >>> parted("sas[mlp.gated=true]")
        ('sas', [('mlp.gated', 'true')])
    """
    base, bracket, rest = name.partition("[")
    if not bracket:
        return base, []
    words = (word.partition("=") for word in rest[:-1].split(","))
    pairs = [(path.strip(), value.strip()) for path, _, value in words]
    if not rest.endswith("]") or not all(map(all, pairs)):
        raise ArgumentError(
            f"preset: expected NAME[SLOT=VALUE,...], such as sas[mlp.gated=true], got {name!r}"
        )
    return base, pairs


def with_start(block: BlockConfig, start: str) -> BlockConfig:
    """Set the initialisation of a block's matrices and of its model's embeddings.

    Args:
        block: block to start from; it is not changed.
        start: scaled: the block's standard deviations; fixed: 0.02, as in GPT-2, instead of each
            standard deviation that depends on a width.

    Returns:
        The new block.

    Raises:
        ArgumentError: an unknown start.

    Examples:
        >>> with_start(preset("sas"), "fixed").mlp.input.std
        0.02
    """
    check_name("start", start, STARTS)
    fixed: BlockConfig = _fixed(block) if start == "fixed" else block
    return fixed


def _fixed(part: Any) -> Any:
    """Set standard deviations that depend on a width to 0.02, also in nested parts."""
    inner = {field.name: getattr(part, field.name) for field in dataclasses.fields(part)}
    changed = {name: _fixed(value) for name, value in inner.items() if isinstance(value, BlockPart)}
    if isinstance(part, Dense) and part.std == FAN_IN:
        changed |= {"std": FIXED, "gain": GAIN}
    if isinstance(part, BlockConfig) and isinstance(part.embedding_std, str):
        changed["embedding_std"] = FIXED
    return dataclasses.replace(part, **changed)


def pattern_names(name: str) -> list[str]:
    """Split a pattern of one or more presets, which the layers repeat in order.

    Returns:
        The names of the presets.

    Examples:
        >>> pattern_names("pre-ln+sas-p[mlp.gated=true]")
        ['pre-ln', 'sas-p[mlp.gated=true]']
    """
    return re.split(r"\+(?![^\[\]]*\])", name)


def summary(name: str) -> str:
    """Describe a preset in one line.

    Returns:
        The description, without the name.

    Raises:
        ArgumentError: unknown preset.

    Examples:
        >>> summary("sas")
        'skipless; no values, no projection'
    """
    check_name("preset", name, PRESETS)
    return _PRESETS[name][0]
