"""Rules that refuse incompatible parts of a block; each rule yields error messages.

A message names both parts by the block's fields, and a remedy.
"""

from collections.abc import Callable, Iterable, Iterator

from hessblocks.blocks.attention import Attention
from hessblocks.blocks.block_fields import BlockFields
from hessblocks.blocks.mlp import MLP
from hessblocks.blocks.norms import NoNorm, Norm
from hessblocks.blocks.positions import ALiBiPosition, RotaryPosition
from hessblocks.blocks.weights import FIXED, TIED, Dense, Shared, Weight
from hessblocks.settings import heads_refusal

BlockRule = Callable[[BlockFields], Iterator[str]]
NO_GRADIENT = "exclude each other: neither would ever get a gradient"
ATTENTION = ("query", "key", "value", "first_value", "projection", "gate")
"""Fields of `Attention` that hold weights."""
NO_SIGNAL = "exclude each other: no signal would pass"


def first_refusal(block: BlockFields) -> str | None:
    """Return the first error message; None if the parts are compatible."""
    return next((reason for rule in RULES for reason in rule(block)), None)


def _heads(block: BlockFields) -> Iterator[str]:
    if block.head_width is None and (refusal := heads_refusal(block.width, block.heads)):
        yield refusal
    if block.heads % block.resolved_key_value_heads:
        yield f"key_value_heads: {block.key_value_heads} does not divide the {block.heads} heads"


def _tied(block: BlockFields) -> Iterator[str]:
    for name, weight in _weights(block):
        if getattr(weight, "init", None) == TIED and name != "projection":
            yield (
                f"{name}: initial value {TIED!r} is for attention's projection, which takes that "
                "of the values"
            )
    attention = block.attention
    if getattr(attention.projection, "init", None) != TIED:
        return
    if _grouped(block):
        yield (
            f"key_value_heads: a {TIED} projection needs as many key-value heads as heads "
            f"({block.heads}), got {block.key_value_heads}"
        )
    for values in filter(None, (attention.value, attention.first_value)):
        if values.initial != "orthogonal":
            yield (
                f"attention: projection with initial value {TIED!r} needs values with initial "
                f"value 'orthogonal', got {values.initial!r}"
            )


def _squares(block: BlockFields) -> Iterator[str]:
    """Require heads · head width = width for square matrices, such as W_V = I."""
    for name, weight in _weights(block):
        if weight.square and _grouped(block) and name in ("key", "value", "first_value"):
            yield (
                f"key_value_heads: attention's {name} with initial value {weight.initial!r} needs "
                f"as many key-value heads as heads ({block.heads}), got {block.key_value_heads}; "
                f"leave key_value_heads out or use dense {name}s"
            )
        inner = block.heads * block.resolved_head_width
        if weight.square and name in ATTENTION and inner != block.width:
            yield (
                f"head_width: attention's {name} with initial value {weight.initial!r} needs heads "
                f"· head_width = width = {block.width}, got {inner}; use a dense {name}"
            )


PRESENT: dict[str, tuple[str, Callable[[BlockFields], bool]]] = {
    "query_key='one-matrix'": ("attention", lambda b: b.attention.query_key == "one-matrix"),
    "gate_per='head'": ("attention", lambda b: b.attention.gate_per == "head"),
    "no gate": ("attention", lambda b: b.attention.gate is None),
    "scores='linear'": ("attention", lambda b: b.attention.scores == "linear"),
    "softcap": ("attention", lambda b: b.attention.softcap is not None),
    "sink": ("attention", lambda b: b.attention.sink is not None),
    "a centre": ("attention", lambda b: bool(b.attention.shaping and b.attention.shaping.centred)),
    "grouped queries": ("key_value_heads", lambda b: _grouped(b)),
    "rotary positions": ("position", lambda b: isinstance(b.position, RotaryPosition)),
    "alibi": ("position", lambda b: isinstance(b.position, ALiBiPosition)),
    "layout='parallel'": ("layout", lambda b: b.layout == "parallel"),
    "norm_placement='post'": ("norm_placement", lambda b: b.norm_placement == "post"),
    "norm no-norm": ("norm", lambda b: isinstance(b.norm, NoNorm)),
    "mlp_norm no-norm": ("mlp_norm", lambda b: isinstance(b.mlp_norm, NoNorm)),
    "mlp_norm": ("mlp_norm", lambda b: b.mlp_norm is not None),
    "sub_blocks='attention'": ("sub_blocks", lambda b: b.sub_blocks == "attention"),
    "sub_blocks='mlp'": ("sub_blocks", lambda b: b.sub_blocks == "mlp"),
    "value_residual": ("attention", lambda b: b.attention.value_residual is not None),
    "a head width": ("head_width", lambda b: b.head_width is not None),
    "a key": ("attention", lambda b: b.attention.key not in (Dense(), Dense(std=FIXED))),
    "a square query and several heads": (
        "attention",
        lambda b: b.attention.query.square and b.heads > 1,
    ),
    "a square gate": (
        "attention",
        lambda b: bool(b.attention.gate and b.attention.gate.square and b.resolved_head_width > 1),
    ),
    "a skip": ("mlp_branch", lambda b: b.mlp_branch.has_skip),
    "a first norm": ("first_norm", lambda b: b.first_norm is not None),
}
"""Parts by name, with their field of the block and a test of whether a block has them."""
ONE_MATRIX, LINEAR = "query_key='one-matrix'", "scores='linear'"
PARALLEL, POST = "layout='parallel'", "norm_placement='post'"
PAIRS = (
    ("grouped queries", ONE_MATRIX, ""),
    ("a head width", ONE_MATRIX, "; leave it out"),
    ("rotary positions", ONE_MATRIX, "; use position='learned'"),
    ("a key", ONE_MATRIX, ": there is no W_K; leave key alone"),
    (
        *("a square query and several heads", ONE_MATRIX),
        ": each head has a matrix of its own; use one head",
    ),
    ("gate_per='head'", "no gate", "; give gate a weight, such as dense"),
    ("a square gate", "gate_per='head'", "; use a dense gate or gate_per='entry'"),
    ("alibi", LINEAR, ": it lowers scores under a softmax; use another position"),
    (LINEAR, "softcap", ": it needs a softmax; leave softcap out"),
    (LINEAR, "sink", ": it needs a softmax; leave sink out"),
    (
        *(LINEAR, "a centre"),
        ": linear attention is 0 at zero scores; use shaping with centred=False",
    ),
    (
        *("a skip", PARALLEL),
        ": the parallel layout has one skip, in attention_branch; set mlp_branch's skip to 0",
    ),
    (POST, PARALLEL, ": the parallel layout has its norm before the sub-blocks; use pre"),
    (POST, "norm no-norm", "; use pre"),
    (POST, "mlp_norm no-norm", "; use pre"),
    (
        *("a first norm", POST),
        ": it stands before the first attention; use norm_placement='pre' or leave first_norm out",
    ),
    ("sub_blocks='attention'", PARALLEL, "; use layout='sequential'"),
    ("sub_blocks='mlp'", PARALLEL, "; use layout='sequential'"),
    ("sub_blocks='attention'", "mlp_norm", "; leave mlp_norm out"),
    ("value_residual", "sub_blocks='mlp'", ": there are no values; leave value_residual out"),
)
"""Two parts that exclude each other, reason and remedy."""


def _pairs(block: BlockFields) -> Iterator[str]:
    for first, second, advice in PAIRS:
        field, has_first = PRESENT[first]
        if has_first(block) and PRESENT[second][1](block):
            yield f"{field}: {first} and {second} exclude each other{advice}"


def _no_scores(block: BlockFields) -> Iterator[str]:
    part = block.attention
    read = Attention(scores="none", projection=part.projection)
    if part.scores == "none" and (part != read or not isinstance(part.projection, Dense)):
        yield (
            "attention: scores='none' has a dense projection and reads no other field; leave the "
            "others at their defaults"
        )


def _shared(block: BlockFields) -> Iterator[str]:
    for name, weight in _weights(block):
        if isinstance(weight, Shared) and name not in ATTENTION[:3]:
            yield f"{name}: only query, key and value can be the first layer's; use another weight"


def _rotary(block: BlockFields) -> Iterator[str]:
    position, width = block.position, block.resolved_head_width
    if isinstance(position, RotaryPosition) and (
        position.turned(width) % 2 or not position.turned(width)
    ):
        yield (
            "position: rotary positions turn pairs and need an even head width, got "
            f"{position.turned(width)} entries that turn of {width} (width {block.width}, "
            f"{block.heads} heads); use position='learned'"
        )


def _wide(block: BlockFields) -> Iterator[str]:
    sums = {
        "embedding_skip": block.embedding_skip,
        "attention.value_residual": block.attention.value_residual,
    }
    for name, branch in sums.items():
        if branch is not None and not branch.has_skip:
            yield (
                f"{name}: skip=0 and trainable_skip=False exclude each other here: what the layers "
                f"carry would never have an effect; give skip another value or leave {name} out"
            )


def _zero_scores(block: BlockFields) -> Iterator[str]:
    """Refuse scores with two zero factors: neither would ever get a gradient."""
    for name, weight, norm in _factors(block):
        if weight.initial == "zeros" and norm.scale_free:
            yield (
                f"attention: a zero {name} and a query-key norm exclude each other (the norm of a "
                "zero vector has a gradient of size 1/√eps); use a dense query and "
                "query_norm=rms-norm with gain=0, which starts with zero scores too"
            )
    zeros = _score_zeros(block)
    if len(zeros) > 1:
        yield f"attention: {zeros[0]} and {zeros[1]} {NO_GRADIENT}"


def _zero_norms(block: BlockFields) -> Iterator[str]:
    """Refuse norms with zero initial output: a sub-block or the model would get no signal."""
    for name in ("norm", "first_norm", "mlp_norm", "final_norm"):
        norm = getattr(block, name)
        for field in _zero_fields(norm):
            yield f"{name}: {norm.kind} and {field}=0 {NO_SIGNAL}; give {field} another value"


def _zero_pairs(block: BlockFields) -> Iterator[str]:
    """Refuse two zero factors of a sub-block's output: neither would ever get a gradient."""
    mlp = block.mlp
    for name, (inside, behind) in _zeros_of(block).items():
        zeros = inside + behind
        if len(zeros) > 1:
            yield f"{name}: {zeros[0]} and {zeros[1]} {NO_GRADIENT}"
        if inside and (norm := getattr(block, name).norm).scale_free:
            yield (
                f"{name}: {inside[0]} and norm {norm.kind} exclude each other (the norm of a zero "
                "vector has a gradient of size 1/√eps); use a norm with gain=0, which starts with "
                "nothing added too"
            )
    flat = mlp.activation in ("relu", "relu-squared")
    flat |= mlp.activation == "leaky-relu" and mlp.negative_slope == 0
    if mlp.input.initial == "zeros" and (mlp.gated or flat):
        partner = "gated=True" if mlp.gated else f"activation={mlp.activation!r}"
        yield f"mlp: a zero input and {partner} exclude each other: there would never be a gradient"


def _silent_without_skip(block: BlockFields) -> Iterator[str]:
    """Refuse zero output without a skip: no signal passes; if parallel, two zero outputs."""
    attention, mlp = ((inside + behind)[:1] for inside, behind in _zeros_of(block).values())
    if block.layout == "parallel":
        attention = [f"{first}, mlp_branch's {second}" for first in attention for second in mlp]
        mlp = []
    for branch, zeros in (("attention_branch", attention), ("mlp_branch", mlp)):
        if zeros and getattr(block, branch).skip == 0:
            yield f"{branch}: no skip and {zeros[0]} {NO_SIGNAL}"


def _mlp_squares(block: BlockFields) -> Iterator[str]:
    wide = block.resolved_mlp_width
    for name, weight in _named(block.mlp, ("input", "output")):
        if weight.square and wide != block.width:
            yield (
                f"mlp_width: mlp's {name} with initial value {weight.initial!r} needs mlp_width = "
                f"width = {block.width}, got {wide}"
            )


def _grouped(block: BlockFields) -> bool:
    """Tell whether there are fewer key-value heads than heads."""
    return block.resolved_key_value_heads != block.heads


def _factors(block: BlockFields) -> Iterator[tuple[str, Weight, Norm]]:
    """Yield name, weight and norm of queries and keys, the factors of the scores."""
    attention = block.attention
    yield "query", attention.query, attention.resolved_query_norm
    yield "key", attention.key, attention.query_key_norm


def _score_zeros(block: BlockFields) -> list[str]:
    """List the reasons why queries and keys are zero at initialisation."""
    zeros = []
    for name, weight, norm in _factors(block):
        if weight.initial == "zeros":
            zeros.append(f"a zero {name}")
        elif getattr(norm, "gain", 1.0) == 0:
            zeros.append(f"a {name} norm with gain=0")
    return zeros


def _zeros_of(block: BlockFields) -> dict[str, tuple[list[str], list[str]]]:
    """List by slot what is zero at first of a branch's output: inside it, and its norm and gain."""
    values = _zeros(block.attention, ("value", "first_value"))[:1]
    attention = values + _zeros(block.attention, ("projection",)) + _zero_mixing(block)
    inside = {"attention_branch": attention, "mlp_branch": _zeros(block.mlp, ("input", "output"))}
    by_branch = {}
    for name, zeros in inside.items():
        branch = getattr(block, name)
        norms = [f"a norm with {field}=0" for field in _zero_fields(branch.norm)]
        by_branch[name] = (zeros, norms + (["gain=0"] if branch.gain == 0 else []))
    return by_branch


def _zero_fields(norm: Norm) -> list[str]:
    """List the fields of a norm that make its initial output zero."""
    return [field for field in ("gain", "scale") if getattr(norm, field, 1.0) == 0]


def _zero_mixing(block: BlockFields) -> list[str]:
    """List reasons why αI + βA − γC = 0: A = 0, no gains, or α = 0, β = γ and A = C."""
    shaping = block.attention.shaping
    if shaping is None and block.attention.scores == "linear":  # A is 0 at zero scores
        return [f"{zero} with scores='linear'" for zero in _score_zeros(block)[:1]]
    if shaping is None or shaping.alpha != 0:
        return []
    gamma = shaping.gamma if shaping.centred else 0.0
    if shaping.beta != gamma:
        return []
    if gamma == 0:
        return ["shaping without gains"]
    return [f"shaping with alpha=0, beta=gamma and {zero}" for zero in _score_zeros(block)[:1]]


def _zeros(part: Attention | MLP, names: Iterable[str]) -> list[str]:
    return [f"a zero {name}" for name, weight in _named(part, names) if weight.initial == "zeros"]


def _weights(block: BlockFields) -> Iterator[tuple[str, Weight]]:
    """Yield the name and part of each weight that the block has."""
    yield from _named(block.attention, ATTENTION)
    yield from _named(block.mlp, ("input", "output"))


def _named(part: Attention | MLP, names: Iterable[str]) -> Iterator[tuple[str, Weight]]:
    for name in names:
        if (weight := getattr(part, name)) is not None:
            yield name, weight


RULES: tuple[BlockRule, ...] = (
    _heads,
    _tied,
    _squares,
    _pairs,
    _shared,
    _no_scores,
    _rotary,
    _wide,
    _zero_scores,
    _zero_norms,
    _zero_pairs,
    _silent_without_skip,
    _mlp_squares,
)
