"""Table of known architectures, and a guess of the parameter names of others.

Weights of `torch.nn.Linear` are (outputs, inputs); those of GPT-2's Conv1D are (inputs, outputs).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from hessblocks.errors import ArgumentError


@dataclass(frozen=True, kw_only=True)
class Heads:
    """Sizes of a model's attention."""

    count: int
    """Query heads."""
    groups: int
    """Key-value heads; equal to `count` without grouped queries."""

    def of(self, role: str) -> int:
        """Return the number of heads of one role."""
        return self.groups if role in ("key", "value") else self.count


@dataclass(frozen=True, kw_only=True)
class Span:
    """Indices of one role along the fused axis: `blocks` runs of `length` indices, `step` apart."""

    role: str
    """Role of the entries."""
    offset: int
    """First index."""
    blocks: int
    """Number of runs."""
    length: int
    """Indices in a run."""
    step: int
    """Distance between the starts of successive runs."""

    @property
    def indices(self) -> Int[Tensor, " entries"]:
        """Indices of the entries along the fused axis."""
        starts = self.offset + self.step * torch.arange(self.blocks)
        return (starts[:, None] + torch.arange(self.length)).flatten()

    def divides(self, heads: int) -> bool:
        """Tell whether each run divides into whole heads of equal width."""
        return (
            self.length > 0 and self.blocks * self.length % heads == 0 and heads % self.blocks == 0
        )

    def by_head(self, heads: int) -> list[Span]:
        """Split the indices into one piece per head, in the order of the heads."""
        width = self.blocks * self.length // heads
        return [
            Span(role=self.role, offset=offset + start, blocks=1, length=width, step=width)
            for offset in (self.offset + block * self.step for block in range(self.blocks))
            for start in range(0, self.length, width)
        ]


Packing = Callable[[int, Heads], list[Span]]
"""Maps the length of the fused axis and the heads to the pieces along this axis."""


def one_role(role: str) -> Packing:
    """Return the packing in which the whole axis has one role."""
    return lambda length, heads: [Span(role=role, offset=0, blocks=1, length=length, step=length)]


def stacked(length: int, heads: Heads) -> list[Span]:
    """Split [all queries | all keys | all values]; without grouped queries these are thirds."""
    return _repeated(length, heads, blocks=1)


def thirds(length: int, heads: Heads) -> list[Span]:
    """Split [all queries | all keys | all values] into thirds, as in `nn.MultiheadAttention`."""
    return _repeated(length, Heads(count=1, groups=1), blocks=1)


def interleaved(length: int, heads: Heads) -> list[Span]:
    """Split [group][its queries, key, value]; without grouped queries a group is one head."""
    return _repeated(length, heads, blocks=heads.groups)


def _repeated(length: int, heads: Heads, *, blocks: int) -> list[Span]:
    """Split [block][queries | keys | values]."""
    width = length // (heads.count + 2 * heads.groups)
    query, key = heads.count // blocks * width, heads.groups // blocks * width
    starts = {"query": (0, query), "key": (query, key), "value": (query + key, key)}
    return [
        Span(role=role, offset=offset, blocks=blocks, length=size, step=query + 2 * key)
        for role, (offset, size) in starts.items()
    ]


def heads_of(config: Any, layer: int = 0) -> Heads:
    """Read the heads of a layer from a Hugging Face configuration.

    Returns:
        Numbers of heads and of key-value heads.

    Raises:
        ArgumentError: the configuration has no number of heads.
    """
    if getattr(config, "model_type", "") == "hessblocks":  # its layers may differ
        block = config.pattern[layer % len(config.pattern)]
        return Heads(count=block["heads"], groups=block["key_value_heads"] or block["heads"])
    count = getattr(config, "num_attention_heads", None)
    if not count:
        owner = "its configuration" if config is None else type(config).__name__
        raise ArgumentError(
            f"model: {owner} has no num_attention_heads, so heads cannot be told apart; use "
            "level='role'"
        )
    groups = getattr(config, "num_key_value_heads", None)
    if getattr(config, "model_type", "") == "falcon":
        # Falcon has two switches; its first version shares one key-value head among all queries
        first = 1 if config.multi_query else None
        groups = config.num_kv_heads if config.new_decoder_architecture else first
    return Heads(count=int(count), groups=int(groups or count))


HEAD = r"(lm_head|score|classifier|cls|head|decoder|pooler)(\.\w+)*"
"""Default pattern of a head's modules."""
_OWN_NAMES = ("norm", "gains", "final.norm", "embedding.norm")
"""Groups whose modules may have parameters of any name. In other groups, names besides weight and
bias belong to an adapter (LoRA)."""
_INSIDE = {
    "mlp.in": "mlp_in",
    "mlp.out": "mlp_out",
    "mlp.router": "router",
    "norm": "norm",
    "gains": "gain",
    "attention.bias": "embedding",
}
"""Role of each group of a layer, except query, key, value and projection."""
_OUTSIDE = {
    **{f"embedding.{part}": "embedding" for part in ("token", "position", "segment", "patch")},
    "embedding.norm": "norm",
    "final.norm": "norm",
    "head": "head",
}
"""Role of each group outside the layers."""


@dataclass(frozen=True, kw_only=True)
class Rule:
    """Pattern of parameter names, with the groups of a parameter that matches."""

    pattern: str
    """Regular expression for the whole name; its group `layer` is the layer's number."""
    name: str
    """Group name, with placeholders {layer} and {role}."""
    role: str
    """Role of the whole parameter; empty if `packing` has several roles."""
    packing: Packing | None = None
    """Order of the heads along `axis`; None if the parameter has no heads."""
    axis: int = 0
    """Axis of a weight along which heads lie."""


def rules_of(
    layer: str,
    groups: Mapping[str, str],
    *,
    packing: Packing | None = None,
    conv1d: bool = False,
    side: str = "",
) -> list[Rule]:
    """Make the rules of an architecture.

    Args:
        layer: pattern of the prefix of a layer's parameter names.
        groups: for each group name, a pattern of its modules or parameters, after the prefix
            `layer` for groups of a layer. Attention has `projection`, and `query`, `key` and
            `value` or one `fused` weight; cross-attention has the same with the prefix `cross.`.
            Groups outside the layers may be inside a base model. The default of `head` is `HEAD`.
        packing: order of the heads in the fused weight.
        conv1d: whether weights are (inputs, outputs).
        side: prefix of the layers' group names, such as `encoder`.

    Returns:
        Rules, in the order in which they are tried.
    """
    rules = []
    begin = f"{side}.layers.{{layer}}." if side else "layers.{layer}."
    for name, modules in {**groups, "head": groups.get("head", HEAD)}.items():
        suffix = r"\w+" if name in _OWN_NAMES else "weight|bias"
        pattern = rf"({modules})(\.({suffix}))?"
        if name in _OUTSIDE:
            rules.append(Rule(pattern=rf"(\w+\.)?{pattern}", name=name, role=_OUTSIDE[name]))
        elif name in _INSIDE:
            rules.append(Rule(pattern=layer + pattern, name=begin + name, role=_INSIDE[name]))
        else:
            cross, _, role = name.rpartition(".")
            rule = Rule(
                pattern=layer + pattern,
                name=begin + ("cross_attention" if cross else "attention") + ".{role}",
                role="" if role == "fused" else role,
                packing=packing if role == "fused" else one_role(role),
                axis=int((role == "projection") != conv1d),
            )
            if role == "projection":  # heads lie along the inputs; the bias belongs to no head
                bias = rf"{layer}({modules})\.bias"
                rules.append(replace(rule, pattern=bias, packing=None))
            rules.append(rule)
    return rules


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """Names of an architecture's parts; fields besides `rules` are of the closed forms' models."""

    rules: Sequence[Rule]
    """Rules of its parameter groups, which also locate query, key, value and projection."""
    behind: tuple[str, ...] = ()
    """Paths from the model to the modules after the last layer; the last may hold the output
    layer. Empty if the last layer has no closed form."""
    causal: bool = True
    """Whether a token attends only to itself and earlier tokens."""
    single_rotation: bool = False
    """Whether rotary embeddings are computed in float32, whatever the weights' dtype."""
    expected: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the configuration, with the only value that the closed form supports."""
    conv1d: bool = False
    """Whether weights of layers are stored (inputs, outputs)."""


_LAYERS = r"(?:\w+\.)*layers\.(?P<layer>\d+)\."
_H = r"(?:transformer\.)?h\.(?P<layer>\d+)\."
_ENCODER = r"(?:\w+\.)*(?:layer|layers)\.(?P<layer>\d+)\."
_SHARED_LAYERS = r"(?:\w+\.)*albert_layer_groups\.(?P<layer>\d+)\.albert_layers\.\d+\."
READ = ("query", "key", "value")


def _letters(module: str, end: str) -> dict[str, str]:
    """Return the patterns of a module's parameters named q, k and v, by role."""
    return {role: rf"{module}\.{role[0]}{end}" for role in READ}


_HESSBLOCKS = {
    **{role: rf"attention\.{role}" for role in (*READ, "projection", "gate")},
    "gains": r"attention\.(gains|sink)|(attention|mlp)_branch|embedding_skip|value_residual",
    "mlp.in": r"mlp\.(input|gate)",
    "mlp.out": r"mlp\.output",
    "norm": r"(attention|mlp)_(norm|branch\.norm)|(embedding_skip|value_residual)\.norm"
    r"|attention\.(query|key)_norm",
    "embedding.token": "token_embedding",
    "embedding.position": "position_embedding",
    "final.norm": "final_norm",
}

_EXPERTS = r"((experts(\.\d+)?|shared_expert)\.)?"
NAMES = {
    **{
        role: rf"(self_)?attn\.{role[0]}_proj(_weight)?|attn\.[Wb]_{role[0].upper()}"
        rf"|attention\.((self|attention)\.)?((pos_)?{role}(_proj)?|{role[0]}_(proj|lin))"
        for role in READ
    },
    "cross.projection": r"multihead_attn\.out_proj",
    "projection": r"self_attn\.(o_proj|out_proj|dense)|attn\.(out_proj|c_proj|proj|[Wb]_O|Wo)"
    r"|(self_)?attention\.(dense|o_proj|out_lin|output\.dense)",
    "mlp.in": rf"mlp\.({_EXPERTS}(gate_proj|up_proj|gate_up_proj(_bias)?)|fc1|fc_in|c_fc|Wi"
    r"|dense_h_to_4h|W_in|W_gate|b_in)|fc1|linear1|ffn(\.lin1)?|intermediate\.dense",
    "mlp.out": rf"mlp\.({_EXPERTS}down_proj(_bias)?|fc2|fc_out|c_proj|Wo"
    r"|dense_4h_to_h|W_out|b_out)|fc2|linear2|ffn_output|ffn\.lin2|output\.dense",
    "mlp.router": r"mlp\.(gate|router|shared_expert_gate)",
    "gains": r"self_attn\.sinks",
    "norm": r"\w+_layer_?norm|layernorm_(before|after)|(attn|mlp)_norm|norm\d"
    r"|ln_(\d|attn|mlp)|ln\d\.[wb]|self_attn\.[qk]_(layer)?norm"
    r"|(attention\.)?(output\.)?LayerNorm",
    "embedding.token": r"wte|embed_in|word_embeddings|(decoder\.)?(embed_tokens|project_in)"
    r"|embeddings\.(word|tok)_embeddings|encoder\.embedding_hidden_mapping_in|embed\.W_E",
    "embedding.position": r"wpe|(decoder\.)?embed_positions|embeddings\.position_embeddings"
    r"|encoder\.rel_embeddings|pos_embed\.W_pos",
    "embedding.segment": r"embeddings\.token_type_embeddings",
    "embedding.patch": r"embeddings\.(patch_embeddings\.projection|cls_token|mask_token)",
    "embedding.norm": r"word_embeddings_layernorm|embeddings\.(LayerNorm|norm)",
    "final.norm": r"norm|ln_f|layernorm|(decoder\.)?final_layer_?norm|encoder\.LayerNorm"
    r"|ln_final\.[wb]",
    "head": r"(lm_head|score|classifier|cls|predictions|pooler)(\.\w+)*|embed_out"
    r"|(decoder\.)?project_out|vocab_(transform|layer_norm|projector)|pre_classifier"
    r"|unembed\.[Wb]_U",
}
"""Names in known architectures, including torch's layers, timm and TransformerLens."""

_TORCH = {
    "fused": r"self_attn\.in_proj_(weight|bias)",
    "cross.fused": r"multihead_attn\.in_proj_(weight|bias)",
}
_FUSED = {**_TORCH, "fused": rf"attn\.(c_attn|qkv)|{_TORCH['fused']}"}
"""Fused weights that are ordered [queries | keys | values] in unknown architectures."""


def _two_sides(
    layer: str, shared: Mapping[str, str], cross: Mapping[str, str], outside: Mapping[str, str]
) -> list[Rule]:
    """Return the rules of an encoder-decoder; `layer` names the side as {side}."""
    shared = {**shared, "head": r"lm_head|qa_outputs|classification_head\.\w+"}
    decoder = {**shared, **{f"cross.{role}": pattern for role, pattern in cross.items()}}
    return [
        *rules_of(layer.replace("{side}", "encoder"), shared, side="encoder"),
        *rules_of(layer.replace("{side}", "decoder"), {**decoder, **outside}, side="decoder"),
    ]


_BART = _two_sides(
    r"(?:model\.)?{side}\.layers\.(?P<layer>\d+)\.",
    {name: NAMES[name] for name in (*READ, "projection", "mlp.in", "mlp.out", "norm")},
    {**_letters("encoder_attn", "_proj"), "projection": r"encoder_attn\.out_proj"},
    {
        "embedding.token": r"shared|(en|de)coder\.embed_tokens",
        "embedding.position": r"(en|de)coder\.embed_positions",
        "embedding.norm": r"(en|de)coder\.layernorm_embedding",
        "final.norm": r"(en|de)coder\.layer_norm",
    },
)
_T5 = _two_sides(
    r"(?:transformer\.)?{side}\.block\.(?P<layer>\d+)\.layer\.\d\.",
    {
        **_letters("SelfAttention", ""),
        "projection": r"SelfAttention\.o",
        "mlp.in": r"DenseReluDense\.wi(_\d)?",
        "mlp.out": r"DenseReluDense\.wo",
        "norm": "layer_norm",
        "attention.bias": r"SelfAttention\.relative_attention_bias",
    },
    {**_letters("EncDecAttention", ""), "projection": r"EncDecAttention\.o"},
    {"embedding.token": "shared", "final.norm": r"(en|de)coder\.final_layer_norm"},
)
_ATTENTION_FIRST = {"fused": r"(self_)?attention\.query_key_value", **NAMES}

OURS = {
    "self_attn.q_norm": "attention.query_norm",
    "self_attn.k_norm": "attention.key_norm",
    "mlp.gate_proj": "mlp.gate",
    **dict.fromkeys(("mlp.up_proj", "mlp.c_fc", "mlp.dense_h_to_4h"), "mlp.input"),
    **dict.fromkeys(("mlp.down_proj", "mlp.c_proj", "mlp.dense_4h_to_h"), "mlp.output"),
    **dict.fromkeys(("input_layernorm", "ln_1"), "attention_norm"),
    **dict.fromkeys(("post_attention_layernorm", "ln_2"), "mlp_norm"),
    **dict.fromkeys(("embed_tokens", "wte", "embed_in"), "model.token_embedding"),
    "wpe": "model.position_embedding",
    **dict.fromkeys(("norm", "ln_f", "final_layer_norm"), "model.final_norm"),
    **dict.fromkeys(("lm_head", "embed_out"), "lm_head"),
}
"""Our module for each module of Llama, Mistral, Qwen2, Qwen3, GPT-2 and GPT-NeoX, without the
prefix of the layer or of the base model. Query, key, value and projection: see the rules."""

_USUAL = Architecture(rules=rules_of(_LAYERS, NAMES))
_LLAMA = replace(_USUAL, behind=("model.norm",))
_BERT = Architecture(
    rules=rules_of(_ENCODER, NAMES),
    behind=("cls.predictions",),
    causal=False,
    expected={"is_decoder": False, "add_cross_attention": False},
)
ARCHITECTURES: dict[str, Architecture] = {
    "hessblocks": Architecture(
        rules=rules_of(  # users' parts may have parameters of any name
            _LAYERS, {name: rf"({modules})(\.\w+)?" for name, modules in _HESSBLOCKS.items()}
        )
    ),
    "gpt2": Architecture(
        rules=rules_of(_H, {"fused": r"attn\.c_attn", **NAMES}, packing=stacked, conv1d=True),
        behind=("transformer.ln_f",),
        expected={
            "scale_attn_weights": True,
            "scale_attn_by_inverse_layer_idx": False,
            "add_cross_attention": False,
        },
        conv1d=True,
    ),
    "gpt_neox": Architecture(
        rules=rules_of(_LAYERS, _ATTENTION_FIRST, packing=interleaved),
        behind=("gpt_neox.final_layer_norm",),
    ),
    **dict.fromkeys(
        ("bloom", "falcon"),
        Architecture(rules=rules_of(_H, _ATTENTION_FIRST, packing=interleaved)),
    ),
    "phi3": Architecture(
        rules=rules_of(_LAYERS, {"fused": r"self_attn\.qkv_proj", **NAMES}, packing=stacked)
    ),
    **dict.fromkeys(("llama", "mistral", "qwen2", "qwen3", "gemma"), _LLAMA),
    "gemma3_text": replace(
        _LLAMA, expected={"attn_logit_softcapping": None, "final_logit_softcapping": None}
    ),
    "phi": replace(_USUAL, behind=("model.final_layernorm",)),
    "opt": replace(
        _USUAL,
        behind=("model.decoder.final_layer_norm",),
        expected={"do_layer_norm_before": True, "_remove_final_layer_norm": False},
    ),
    **dict.fromkeys(
        ("gemma2", "olmo2", "mixtral", "qwen2_moe", "qwen3_moe", "gpt_oss"),
        _USUAL,
    ),
    "gptj": Architecture(rules=rules_of(_H, NAMES)),
    "bart": Architecture(rules=_BART),
    "t5": Architecture(rules=_T5),
    "distilbert": Architecture(
        rules=rules_of(_ENCODER, {**NAMES, "head": rf"{NAMES['head']}|qa_outputs"})
    ),
    "bert": _BERT,
    "roberta": replace(_BERT, behind=("lm_head",)),
    **dict.fromkeys(("deberta", "deberta-v2"), replace(_BERT, behind=())),
    "albert": Architecture(rules=rules_of(_SHARED_LAYERS, NAMES)),
    "modernbert": Architecture(
        rules=rules_of(  # its head also has a norm
            _LAYERS,
            {**NAMES, "fused": r"attn\.Wqkv", "final.norm": "final_norm", "head": HEAD},
            packing=stacked,
        ),
        behind=("model.final_norm", "head"),
        causal=False,
        single_rotation=True,
    ),
    "vit": Architecture(rules=rules_of(_ENCODER, NAMES), behind=("vit.layernorm",), causal=False),
}
"""Architectures by the `model_type` of a Hugging Face configuration."""

_CONTAINER = re.compile(r"((?:\w+\.)*?)(\w+)\.\d+\.")


def usual_rules(names: Sequence[str], *, conv1d: bool, registered: bool) -> list[Rule]:
    """Guess the rules of an unknown architecture from the names in known ones.

    Args:
        names: names of its parameters; layers are modules with a number in their path. If there
            are several lists of layers (an encoder and a decoder, two towers), the list's path is
            the prefix of its group names.
        conv1d: whether weights are (inputs, outputs).
        registered: whether the architecture is from a library. Its fused weights may have another
            order (GPT-BigCode's is head by head), so that they are not split, except in torch's
            layers.

    Returns:
        The rules; none if there are no layers.
    """
    lists = dict.fromkeys(match.groups() for name in names if (match := _CONTAINER.match(name)))
    several = len({path for path, _ in lists}) > 1
    usual = {**NAMES, **(_TORCH if registered else _FUSED)}
    if not any(".experts." in name for name in names):
        del usual["mlp.router"]  # `mlp.gate` may be half of a gated MLP
    return [
        rule
        for path, container in lists
        for rule in rules_of(
            rf"{re.escape(path)}{container}\.(?P<layer>\d+)\.",
            usual,
            packing=thirds,
            conv1d=conv1d,
            side=(path.rstrip(".") or container) if several else "",
        )
    ]
