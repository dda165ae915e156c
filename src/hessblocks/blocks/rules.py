"""Which parts of a block exclude each other, and why; each rule returns a reason or None.

A reason names both parts, by the fields of the block, and what to do instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from hessblocks.blocks.block_fields import BlockFields
from hessblocks.blocks.norms import NoNorm, Norm
from hessblocks.blocks.positions import RotaryPosition
from hessblocks.blocks.weights import TIED, Dense, Weight

Rule = Callable[[BlockFields], str | None]


def first_refusal(block: BlockFields) -> str | None:
    """The reason of the first rule that the block breaks."""
    return next((reason for rule in RULES if (reason := rule(block))), None)


def _heads(block: BlockFields) -> str | None:
    if block.width % block.heads == 0:
        return None
    divisors = [h for h in range(1, block.width + 1) if block.width % h == 0]
    nearest = sorted(divisors, key=lambda h: abs(h - block.heads))[:2]
    return (
        f"heads: {block.heads} heads do not divide the width {block.width}; "
        f"use {' or '.join(map(str, sorted(nearest)))} heads"
    )


def _key_value_heads(block: BlockFields) -> str | None:
    if block.heads % block.resolved_key_value_heads == 0:
        return None
    return f"key_value_heads: {block.key_value_heads} does not divide the {block.heads} heads"


def _grouped(block: BlockFields) -> str | None:
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


def _one_matrix(block: BlockFields) -> str | None:
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


def _rotary(block: BlockFields) -> str | None:
    if not isinstance(block.position, RotaryPosition) or block.head_width % 2 == 0:
        return None
    return (
        f"position: rotary positions turn pairs and need an even head width, got {block.head_width}"
        f" (width {block.width}, {block.heads} heads)"
    )


def _zero_under_norm(block: BlockFields) -> str | None:
    attention = block.attention
    for name, weight, norm in (
        ("query", attention.query, attention.resolved_query_norm),
        ("key", attention.key, attention.query_key_norm),
    ):
        if weight.initial == "zeros" and norm.scale_free:
            return (
                f"attention: a zero {name} and a query-key norm exclude each other (the norm of a zero vector has a "
                "gradient of size 1/eps); use a dense query and query_norm=rms-norm with gain=0, which starts with "
                "zero scores too"
            )
    return None


def _zero_scores(block: BlockFields) -> str | None:
    """Scores are a product: where both factors start at zero, neither ever gets a gradient."""
    attention = block.attention
    query = _zero_source("query", attention.query, attention.resolved_query_norm)
    key = _zero_source("key", attention.key, attention.query_key_norm)
    if query is None or key is None:
        return None
    return f"attention: {query} and {key} exclude each other: neither would ever get a gradient"


def _zero_source(name: str, weight: Weight, norm: Norm) -> str | None:
    """What makes queries or keys zero at initialisation."""
    if weight.initial == "zeros":
        return f"a zero {name}"
    return f"a {name} norm with gain=0" if getattr(norm, "gain", 1.0) == 0 else None


def _zero_norms(block: BlockFields) -> str | None:
    """A norm whose output starts at zero leaves a sub-block, or the model, without a signal."""
    for name in ("norm", "first_norm", "final_norm"):
        norm = getattr(block, name)
        for field in ("gain", "scale"):
            if getattr(norm, field, 1.0) == 0:
                return (
                    f"{name}: {norm.kind} and {field}=0 exclude each other: no signal would pass; give "
                    f"{field} another value"
                )
    return None


def _zero_pairs(block: BlockFields) -> str | None:
    """What a sub-block returns is a product: with two factors at zero, none ever gets a gradient."""
    mlp = block.mlp
    for name, zeros in (
        ("attention_branch", _attention_zeros(block)),
        ("mlp_branch", _mlp_zeros(block)),
    ):
        if len(zeros) > 1:
            return f"{name}: {zeros[0]} and {zeros[1]} exclude each other: neither would ever get a gradient"
    flat = mlp.activation == "relu" or (mlp.activation == "leaky-relu" and mlp.negative_slope == 0)
    if _is_zero(mlp.input) and (mlp.gated or flat):
        partner = "gated=True" if mlp.gated else f"activation={mlp.activation!r}"
        return (
            f"mlp: a zero input and {partner} exclude each other: there would never be a gradient"
        )
    return None


def _silent_without_skip(block: BlockFields) -> str | None:
    """Without a skip, a sub-block whose output starts at zero stops the signal; in parallel, two of them."""
    attention, mlp = _attention_zeros(block), _mlp_zeros(block)
    if block.layout == "parallel":
        both = f"mlp_branch's {mlp[0]}" if mlp and attention else None
        stopped = {"attention_branch": [f"{attention[0]}, {both}"] if both else []}
    else:
        stopped = {"attention_branch": attention, "mlp_branch": mlp}
    for branch, zeros in stopped.items():
        if zeros and getattr(block, branch).skip == 0:
            return f"{branch}: no skip and {zeros[0]} exclude each other: no signal would pass"
    return None


def _attention_zeros(block: BlockFields) -> list[str]:
    """Factors of what attention adds that are zero at initialisation."""
    attention = block.attention
    values = [n for n in ("value", "first_value") if _is_zero(getattr(attention, n))]
    projections = ["projection"] if _is_zero(attention.projection) else []
    found = [f"a zero {name}" for name in values[:1] + projections]
    if (shaping := _zero_shaping(block)) is not None:
        found.append(shaping)
    return found + (["gain=0"] if block.attention_branch.gain == 0 else [])


def _mlp_zeros(block: BlockFields) -> list[str]:
    """Factors of what the MLP adds that are zero at initialisation."""
    names = [n for n in ("input", "output") if _is_zero(getattr(block.mlp, n))]
    return [f"a zero {name}" for name in names] + (["gain=0"] if block.mlp_branch.gain == 0 else [])


def _zero_shaping(block: BlockFields) -> str | None:
    """Words for αI + βA − γC = 0: without gains, or with α = 0, β = γ where A is its own centre C."""
    attention, shaping = block.attention, block.attention.shaping
    if shaping is None or shaping.alpha != 0:
        return None
    gamma = shaping.gamma if shaping.centred else 0.0
    if shaping.beta == gamma == 0:
        return "shaping without gains"
    zero = _zero_source("query", attention.query, attention.resolved_query_norm) or _zero_source(
        "key", attention.key, attention.query_key_norm
    )
    return (
        f"shaping with alpha=0, beta=gamma and {zero}" if zero and shaping.beta == gamma else None
    )


def _linear(block: BlockFields) -> str | None:
    attention = block.attention
    if attention.scores != "linear":
        return None
    if attention.shaping is not None and attention.shaping.centred:
        return (
            "attention: scores='linear' and a centre exclude each other: linear attention is 0 at zero scores, so there "
            "is nothing to subtract; use shaping with centred=False"
        )
    zero = _zero_source("query", attention.query, attention.resolved_query_norm) or _zero_source(
        "key", attention.key, attention.query_key_norm
    )
    if zero and attention.shaping is None and block.attention_branch.skip == 0:
        return (
            f"attention_branch: no skip and {zero} with scores='linear' exclude each other: "
            "attention is 0 at zero scores and no signal would pass"
        )
    return None


def _tied(block: BlockFields) -> str | None:
    attention = block.attention
    for name, weight in _weights(block):
        if getattr(weight, "init", None) == TIED and name != "projection":
            return f"{name}: initial value {TIED!r} is for attention's projection, which takes that of the values"
    if getattr(attention.projection, "init", None) != TIED:
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


def _mlp_squares(block: BlockFields) -> str | None:
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


def _parallel(block: BlockFields) -> str | None:
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


def _post(block: BlockFields) -> str | None:
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


def _is_zero(weight: Weight | None) -> bool:
    return weight is not None and weight.initial == "zeros"


def _weights(block: BlockFields) -> Iterator[tuple[str, Weight]]:
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
    _zero_under_norm,
    _zero_scores,
    _zero_norms,
    _zero_pairs,
    _linear,
    _silent_without_skip,
    _mlp_squares,
    _parallel,
    _post,
)
