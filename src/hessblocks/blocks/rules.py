"""Which parts of a block exclude each other, and why; each rule returns a reason or None.

A reason names both parts, by the fields of `BlockConfig`, and what to do instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from hessblocks.blocks.norms import NoNorm
from hessblocks.blocks.positions import RotaryPosition
from hessblocks.blocks.weights import TIED, Dense, Weight

if TYPE_CHECKING:
    from hessblocks.blocks.config import BlockConfig

Rule = Callable[["BlockConfig"], str | None]


def first_refusal(block: BlockConfig) -> str | None:
    """The reason of the first rule that the block breaks."""
    return next((reason for rule in RULES if (reason := rule(block))), None)


def _heads(block: BlockConfig) -> str | None:
    if block.width % block.heads == 0:
        return None
    divisors = [h for h in range(1, block.width + 1) if block.width % h == 0]
    nearest = sorted(divisors, key=lambda h: abs(h - block.heads))[:2]
    return (
        f"heads: {block.heads} heads do not divide the width {block.width}; "
        f"use {' or '.join(map(str, sorted(nearest)))} heads"
    )


def _key_value_heads(block: BlockConfig) -> str | None:
    if block.heads % block.resolved_key_value_heads == 0:
        return None
    return f"key_value_heads: {block.key_value_heads} does not divide the {block.heads} heads"


def _grouped(block: BlockConfig) -> str | None:
    """W_V = I needs heads · head width = width, and so does every other square matrix."""
    if block.resolved_key_value_heads == block.heads:
        return None
    attention = block.attention
    for name, weight in (
        ("key", attention.key),
        ("value", attention.value),
        ("first_value", attention.first_value),
    ):
        if weight is not None and weight.square:
            return (
                f"key_value_heads: attention's {name} with initial value {weight.initial!r} needs as many key-value "
                f"heads as heads ({block.heads}), got {block.key_value_heads}; leave key_value_heads out or use dense {name}s"
            )
    return None


def _one_matrix(block: BlockConfig) -> str | None:
    attention = block.attention
    if attention.query_key != "one-matrix":
        return None
    if block.resolved_key_value_heads != block.heads:
        return "key_value_heads: grouped queries and query_key='one-matrix' exclude each other"
    if isinstance(block.position, RotaryPosition):
        return "position: rotary positions and query_key='one-matrix' exclude each other"
    if attention.key != Dense():
        return "attention: key and query_key='one-matrix' exclude each other: there is no W_K; leave key alone"
    if attention.query.square and block.heads > 1:
        return (
            f"attention: query with initial value {attention.query.initial!r} and query_key='one-matrix' exclude "
            f"each other with {block.heads} heads, each of which has a matrix of its own; use one head"
        )
    return None


def _rotary(block: BlockConfig) -> str | None:
    if not isinstance(block.position, RotaryPosition) or block.head_width % 2 == 0:
        return None
    return (
        f"position: rotary positions turn pairs and need an even head width, got {block.head_width}"
        f" (width {block.width}, {block.heads} heads)"
    )


def _zero_queries(block: BlockConfig) -> str | None:
    attention = block.attention
    if attention.query.initial != "zeros":
        return None
    if attention.resolved_query_norm.scale_free:
        return (
            "attention: zero queries and a query-key norm exclude each other (the norm of a zero query has a gradient "
            "of size 1/eps); use query=dense() and query_norm=rms-norm with gain=0, which starts with zero scores too"
        )
    if attention.query_key == "two-matrix" and attention.key.initial == "zeros":
        return "attention: zero queries and zero keys exclude each other: neither would ever get a gradient"
    return None


def _zero_norms(block: BlockConfig) -> str | None:
    attention = block.attention
    both = (attention.resolved_query_norm, attention.query_key_norm)
    if all(getattr(norm, "gain", 1.0) == 0 for norm in both):
        return (
            "attention: query_key_norm with gain=0 makes queries and keys zero, and neither would ever get a gradient; "
            "give gain=0 to query_norm alone"
        )
    return None


def _zero_pairs(block: BlockConfig) -> str | None:
    attention, mlp = block.attention, block.mlp
    values = {attention.value.initial, getattr(attention.first_value, "initial", "normal")}
    if "zeros" in values and attention.projection.initial == "zeros":
        return "attention: zero values and a zero projection exclude each other: neither would ever get a gradient"
    if mlp.input.initial == "zeros" and (mlp.output.initial == "zeros" or mlp.gated):
        other = "gated=True" if mlp.gated else "a zero output"
        return (
            f"mlp: a zero input and {other} exclude each other: neither would ever get a gradient"
        )
    return None


def _silent_without_skip(block: BlockConfig) -> str | None:
    """Without a skip, a sub-block whose output starts at zero stops the signal."""
    attention, mlp = block.attention, block.mlp
    no_attention_skip = not block.attention_branch.has_skip
    silent_attention = "zeros" in (
        attention.value.initial,
        getattr(attention.first_value, "initial", ""),
        attention.projection.initial,
    )
    silent_mlp = "zeros" in (mlp.input.initial, mlp.output.initial)
    if block.layout == "parallel":
        stopped = no_attention_skip and silent_attention and silent_mlp
        where = "attention and mlp" if stopped else ""
    elif no_attention_skip and silent_attention:
        where = "attention"
    else:
        where = "mlp" if silent_mlp and not block.mlp_branch.has_skip else ""
    if not where:
        return None
    branch = "mlp_branch" if where == "mlp" else "attention_branch"
    return f"{branch}: no skip and zero weights in {where} exclude each other: no signal would pass"


def _linear(block: BlockConfig) -> str | None:
    attention = block.attention
    if attention.scores != "linear":
        return None
    if attention.shaping is not None and attention.shaping.centred:
        return (
            "attention: scores='linear' and a centre exclude each other: linear attention is 0 at zero scores, so there "
            "is nothing to subtract; use shaping with centred=False"
        )
    zero = "zeros" in (attention.query.initial, attention.key.initial)
    if zero and attention.shaping is None and not block.attention_branch.has_skip:
        return (
            "attention_branch: no skip and zero queries or keys with scores='linear' exclude each other: "
            "attention is 0 at zero scores and no signal would pass"
        )
    return None


def _tied(block: BlockConfig) -> str | None:
    attention = block.attention
    for name, weight in _weights(block):
        if weight.initial == TIED and name != "projection":
            return f"{name}: initial value {TIED!r} is for attention's projection, which takes that of the values"
    if attention.projection.initial != TIED:
        return None
    if block.resolved_key_value_heads != block.heads:
        return (
            f"key_value_heads: a {TIED} projection needs as many key-value heads as heads ({block.heads}), "
            f"got {block.key_value_heads}"
        )
    for values in filter(None, (attention.value, attention.first_value)):
        if values.initial != "orthogonal":
            return (
                f"attention: projection with initial value {TIED!r} needs values with initial value 'orthogonal', "
                f"got {values.initial!r}"
            )
    return None


def _mlp_squares(block: BlockConfig) -> str | None:
    wide = block.resolved_mlp_width
    if wide == block.width:
        return None
    for name, weight in (("input", block.mlp.input), ("output", block.mlp.output)):
        if weight.square:
            return (
                f"mlp_width: mlp's {name} with initial value {weight.initial!r} needs mlp_width = width = {block.width}, "
                f"got {wide}"
            )
    return None


def _parallel(block: BlockConfig) -> str | None:
    if block.layout != "parallel":
        return None
    if block.mlp_branch.has_skip:
        return (
            "mlp_branch: a skip and layout='parallel' exclude each other: the parallel layout has one skip, in "
            "attention_branch; set mlp_branch's skip to 0"
        )
    if block.norm_placement == "post":
        return (
            "norm_placement: post and layout='parallel' exclude each other: the parallel layout has its norm before "
            "the sub-blocks; use pre"
        )
    return None


def _post(block: BlockConfig) -> str | None:
    if block.norm_placement != "post":
        return None
    if isinstance(block.norm, NoNorm):
        return "norm_placement: post and norm no-norm exclude each other; use pre"
    if block.first_norm is not None:
        return (
            "first_norm: it stands before the first attention, which norm_placement='post' leaves without a norm; "
            "use pre or leave first_norm out"
        )
    return None


def _weights(block: BlockConfig) -> Iterator[tuple[str, Weight]]:
    for part, names in (
        (block.attention, ("query", "key", "value", "first_value", "projection")),
        (block.mlp, ("input", "output")),
    ):
        for name in names:
            weight = getattr(part, name)
            if weight is not None:
                yield name, weight


RULES: tuple[Rule, ...] = (
    _heads,
    _key_value_heads,
    _tied,
    _grouped,
    _one_matrix,
    _rotary,
    _zero_queries,
    _zero_norms,
    _zero_pairs,
    _linear,
    _silent_without_skip,
    _mlp_squares,
    _parallel,
    _post,
)
