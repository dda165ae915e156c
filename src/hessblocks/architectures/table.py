"""Table of known architectures, and a guess of the parameter names of others.

Weights of `torch.nn.Linear` are (outputs, inputs); those of GPT-2's Conv1D are (inputs, outputs).
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hessblocks.architectures.rules import HEAD, Rule, interleaved, rules_of, stacked, thirds


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
