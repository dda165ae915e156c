"""Which parameters are queries, keys, values and so on, by architecture: rules on their names.

Weights of `torch.nn.Linear` are (outputs, inputs); those of GPT-2's Conv1D are (inputs, outputs).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from torch import nn

from hessblocks.curvature.groups.packing import Packing, interleaved, one_role, stacked, thirds


@dataclass(frozen=True, kw_only=True)
class Rule:
    """Parameters of one kind and the groups that they go to."""

    pattern: str
    """Regular expression for the whole name; its group `layer` gives the layer."""
    name: str
    """Group name; {layer} and {role} are filled in."""
    role: str
    """Role of the whole parameter; empty where `packing` holds several."""
    packing: Packing | None = None
    """How heads lie along `axis`; None where the parameter has no heads."""
    axis: int = 0
    """Axis of a weight along which heads lie."""


def _rules(
    layer: str,
    groups: Mapping[str, str],
    *,
    packing: Packing | None = None,
    conv1d: bool = False,
    side: str = "",
) -> list[Rule]:
    """The rules of an architecture.

    Args:
        layer: how the names of a layer's parameters begin.
        groups: from group name to a pattern of its modules or parameters. Those of a layer continue
            `layer`; attention has `query`, `key` and `value`, or one `fused` weight, and `projection`;
            the same behind `cross.` for attention to an encoder.
            Those outside may stand in a base model. Without `head`, any of the usual names is one.
        packing: how heads lie in the fused weight.
        conv1d: whether weights are (inputs, outputs).
        side: with which the names of the layers' groups begin, such as `encoder`.

    Returns:
        Those of the layers and those outside, in the order in which they are tried.
    """
    rules = []
    begin = f"{side}.layers.{{layer}}." if side else "layers.{layer}."
    for name, modules in {**groups, "head": groups.get("head", _HEAD)}.items():
        pattern = rf"({modules})(\.\w+)?"
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
            if role == "projection":  # along the inputs; the shift belongs to no head
                bias = rf"{layer}({modules})\.bias"
                rules.append(replace(rule, pattern=bias, packing=None))
            rules.append(rule)
    return rules


_INSIDE = {
    "mlp.in": "mlp_in",
    "mlp.out": "mlp_out",
    "mlp.router": "router",
    "norm": "norm",
    "gains": "gain",
    "attention.bias": "embedding",
}
"""Role of the groups of a layer besides attention."""
_OUTSIDE = {
    **{f"embedding.{of}": "embedding" for of in ("token", "position", "segment", "patch")},
    "embedding.norm": "norm",
    "final.norm": "norm",
    "head": "head",
}
"""Role of the groups outside the layers."""
_LAYERS = r"(?:\w+\.)*layers\.(?P<layer>\d+)\."
_H = r"(?:transformer\.)?h\.(?P<layer>\d+)\."
_ENCODER = r"(?:\w+\.)*(?:layer|layers)\.(?P<layer>\d+)\."
_READ = ("query", "key", "value")
_HEAD = r"(lm_head|score|classifier|cls|head|decoder|pooler)(\.\w+)*"

_HESSBLOCKS = {
    **{role: rf"attention\.{role}" for role in (*_READ, "projection")},
    "gains": r"attention\.gains|(attention|mlp)_branch",
    "mlp.in": r"mlp\.(input|gate)",
    "mlp.out": r"mlp\.output",
    "norm": r"(attention|mlp)_norm|attention\.(query|key)_norm",
    "embedding.token": "token_embedding",
    "embedding.position": "position_embedding",
    "final.norm": "final_norm",
}

_GPT2 = {
    "fused": r"attn\.c_attn",
    "projection": r"attn\.c_proj",
    "mlp.in": r"mlp\.c_fc",
    "mlp.out": r"mlp\.c_proj",
    "norm": r"ln_\d",
    "embedding.token": "wte",
    "embedding.position": "wpe",
    "final.norm": "ln_f",
}

_WIDENED = {"mlp.in": r"mlp\.dense_h_to_4h", "mlp.out": r"mlp\.dense_4h_to_h"}
_GPT_NEOX = {
    "fused": r"attention\.query_key_value",
    "projection": r"attention\.dense",
    "norm": "(input|post_attention)_layernorm",
    **_WIDENED,
    "embedding.token": "embed_in",
    "final.norm": "final_layer_norm",
    "head": "embed_out|lm_head|score|classifier",
}

_BLOOM_FALCON = {
    "fused": r"self_attention\.query_key_value",
    "projection": r"self_attention\.dense",
    "norm": "(input|post_attention)_layernorm|ln_attn|ln_mlp",
    **_WIDENED,
    "embedding.token": "word_embeddings",
    "embedding.norm": "word_embeddings_layernorm",
    "final.norm": "ln_f",
}

_QKV = {role: rf"self_attn\.{role[0]}_proj" for role in _READ}
_EXPERTS = r"mlp\.((experts|shared_expert)\.)?"
_LLAMA = {
    "projection": r"self_attn\.o_proj",
    "mlp.in": rf"{_EXPERTS}(gate_proj|up_proj|gate_up_proj(_bias)?)",
    "mlp.out": rf"{_EXPERTS}down_proj(_bias)?",
    "mlp.router": r"mlp\.(gate|router|shared_expert_gate)",
    "gains": r"self_attn\.sinks",
    "norm": r"\w+_layernorm|self_attn\.[qk]_norm",
    "embedding.token": "embed_tokens",
    "final.norm": "norm",
}

_OPT = {
    "projection": r"self_attn\.out_proj",
    "mlp.in": "fc1",
    "mlp.out": "fc2",
    "norm": "(self_attn|final)_layer_norm",
    "embedding.token": r"(decoder\.)?(embed_tokens|project_in)",
    "embedding.position": r"(decoder\.)?embed_positions",
    "final.norm": r"(decoder\.)?final_layer_norm",
    "head": r"lm_head|score|(decoder\.)?project_out",
}

_BERT = {
    **{role: rf"attention\.self\.{role}" for role in _READ},
    "projection": r"attention\.output\.dense",
    "mlp.in": r"intermediate\.dense",
    "mlp.out": r"output\.dense",
    "norm": r"(attention\.)?output\.LayerNorm",
    "embedding.token": r"embeddings\.word_embeddings",
    "embedding.position": r"embeddings\.position_embeddings",
    "embedding.segment": r"embeddings\.token_type_embeddings",
    "embedding.norm": r"embeddings\.LayerNorm",
}

_MODERNBERT = {
    "fused": r"attn\.Wqkv",
    "projection": r"attn\.Wo",
    "mlp.in": r"mlp\.Wi",
    "mlp.out": r"mlp\.Wo",
    "norm": "(attn|mlp)_norm",
    "embedding.token": r"embeddings\.tok_embeddings",
    "embedding.norm": r"embeddings\.norm",
    "final.norm": "final_norm",
}

_VIT = {
    **{role: rf"attention\.(attention\.)?({role[0]}_proj|{role})" for role in _READ},
    "projection": r"attention\.(o_proj|output\.dense)",
    "mlp.in": r"mlp\.fc1|intermediate\.dense",
    "mlp.out": r"mlp\.fc2|output\.dense",
    "norm": "layernorm_(before|after)",
    "embedding.patch": r"embeddings\.(patch_embeddings\.projection|cls_token|mask_token)",
    "embedding.position": r"embeddings\.position_embeddings",
    "final.norm": "layernorm",
}

_PHI = {
    "projection": r"self_attn\.dense",
    "mlp.in": r"mlp\.fc1",
    "mlp.out": r"mlp\.fc2",
    "norm": r"input_layernorm|self_attn\.[qk]_layernorm",
    "embedding.token": "embed_tokens",
    "final.norm": "final_layernorm",
}

_GPTJ = {
    **{role: rf"attn\.{role[0]}_proj" for role in _READ},
    "projection": r"attn\.out_proj",
    "mlp.in": r"mlp\.fc_in",
    "mlp.out": r"mlp\.fc_out",
    "norm": r"ln_\d",
    "embedding.token": "wte",
    "final.norm": "ln_f",
}

_DISTILBERT = {
    **{role: rf"attention\.{role[0]}_lin" for role in _READ},
    "projection": r"attention\.out_lin",
    "mlp.in": r"ffn\.lin1",
    "mlp.out": r"ffn\.lin2",
    "norm": "(sa|output)_layer_norm",
    "embedding.token": r"embeddings\.word_embeddings",
    "embedding.position": r"embeddings\.position_embeddings",
    "embedding.norm": r"embeddings\.LayerNorm",
    "head": r"vocab_(transform|layer_norm|projector)|pre_classifier|classifier|qa_outputs",
}

_DEBERTA = {
    **_BERT,
    **{role: rf"attention\.self\.(pos_)?{role}_proj" for role in _READ},
    "embedding.position": r"embeddings\.position_embeddings|encoder\.rel_embeddings",
    "final.norm": r"encoder\.LayerNorm",
}

_ALBERT = {
    **{role: rf"attention\.{role}" for role in _READ},
    "projection": r"attention\.dense",
    "mlp.in": "ffn",
    "mlp.out": "ffn_output",
    "norm": r"full_layer_layer_norm|attention\.LayerNorm",
    **{name: _BERT[name] for name in _BERT if name.startswith("embedding.")},
    "embedding.token": r"embeddings\.word_embeddings|encoder\.embedding_hidden_mapping_in",
    "head": _HEAD + r"|predictions(\.\w+)?",
}
_SHARED_LAYERS = r"(?:\w+\.)*albert_layer_groups\.(?P<layer>\d+)\.albert_layers\.\d+\."


def _two_sides(
    layer: str, own: Mapping[str, str], cross: Mapping[str, str], outside: Mapping[str, str]
) -> list[Rule]:
    """The rules of an encoder-decoder; `layer` names the side as {side}."""
    own = {**own, "head": r"lm_head|qa_outputs|classification_head\.\w+"}
    decoder = {**own, **{f"cross.{role}": pattern for role, pattern in cross.items()}}
    return [
        *_rules(layer.replace("{side}", "encoder"), own, side="encoder"),
        *_rules(layer.replace("{side}", "decoder"), {**decoder, **outside}, side="decoder"),
    ]


def _bart_attention(module: str) -> dict[str, str]:
    names = {role: rf"{module}\.{role[0]}_proj" for role in _READ}
    return {**names, "projection": rf"{module}\.out_proj"}


def _t5_attention(module: str) -> dict[str, str]:
    names = {role: rf"layer\.\d\.{module}\.{role[0]}" for role in _READ}
    return {**names, "projection": rf"layer\.\d\.{module}\.o"}


_BART = _two_sides(
    r"(?:model\.)?{side}\.layers\.(?P<layer>\d+)\.",
    {
        **_bart_attention("self_attn"),
        "mlp.in": "fc1",
        "mlp.out": "fc2",
        "norm": r"(self_attn|encoder_attn|final)_layer_norm",
    },
    _bart_attention("encoder_attn"),
    {
        "embedding.token": r"shared|(en|de)coder\.embed_tokens",
        "embedding.position": r"(en|de)coder\.embed_positions",
        "embedding.norm": r"(en|de)coder\.layernorm_embedding",
        "final.norm": r"(en|de)coder\.layer_norm",
    },
)
_T5 = _two_sides(
    r"(?:transformer\.)?{side}\.block\.(?P<layer>\d+)\.",
    {
        **_t5_attention("SelfAttention"),
        "mlp.in": r"layer\.\d\.DenseReluDense\.wi(_\d)?",
        "mlp.out": r"layer\.\d\.DenseReluDense\.wo",
        "norm": r"layer\.\d\.layer_norm",
        "attention.bias": r"layer\.\d\.SelfAttention\.relative_attention_bias",
    },
    _t5_attention("EncDecAttention"),
    {"embedding.token": "shared", "final.norm": r"(en|de)coder\.final_layer_norm"},
)

ARCHITECTURES: dict[str, list[Rule]] = {
    "hessblocks": _rules(_LAYERS, _HESSBLOCKS),
    "gpt2": _rules(_H, _GPT2, packing=stacked, conv1d=True),
    "gpt_neox": _rules(_LAYERS, _GPT_NEOX, packing=interleaved),
    "bloom": _rules(_H, _BLOOM_FALCON, packing=interleaved),
    "falcon": _rules(_H, _BLOOM_FALCON, packing=interleaved),
    "phi3": _rules(_LAYERS, {"fused": r"self_attn\.qkv_proj", **_LLAMA}, packing=stacked),
    **dict.fromkeys(
        (
            *("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "olmo2"),
            *("mixtral", "qwen2_moe", "qwen3_moe", "gpt_oss"),
        ),
        _rules(_LAYERS, {**_QKV, **_LLAMA}),
    ),
    "phi": _rules(_LAYERS, {**_QKV, **_PHI}),
    "gptj": _rules(_H, _GPTJ),
    "opt": _rules(_LAYERS, {**_QKV, **_OPT}),
    "bart": _BART,
    "t5": _T5,
    "distilbert": _rules(_ENCODER, _DISTILBERT),
    **dict.fromkeys(("deberta", "deberta-v2"), _rules(_ENCODER, _DEBERTA)),
    "albert": _rules(_SHARED_LAYERS, _ALBERT),
    "bert": _rules(_ENCODER, _BERT),
    "roberta": _rules(_ENCODER, _BERT),
    "modernbert": _rules(_LAYERS, _MODERNBERT, packing=stacked),
    "vit": _rules(_ENCODER, _VIT),
}
"""Rules by the `model_type` of a Hugging Face configuration."""

_TORCH = {
    **{role: rf"self_attn\.{role[0]}_proj_weight" for role in _READ},
    "fused": r"self_attn\.in_proj_(weight|bias)",
    "cross.fused": r"multihead_attn\.in_proj_(weight|bias)",
    "projection": r"self_attn\.out_proj",
    "cross.projection": r"multihead_attn\.out_proj",
    "mlp.in": "linear1",
    "mlp.out": "linear2",
    "norm": r"norm\d",
}
"""`nn.TransformerEncoderLayer` and `nn.TransformerDecoderLayer`."""
_TRANSFORMER_LENS = {
    **{role: rf"attn\.[Wb]_{role[0].upper()}" for role in _READ},
    "projection": r"attn\.[Wb]_O",
    "mlp.in": r"mlp\.(W_in|W_gate|b_in)",
    "mlp.out": r"mlp\.(W_out|b_out)",
    "norm": r"ln\d\.[wb]",
    "embedding.token": r"embed\.W_E",
    "embedding.position": r"pos_embed\.W_pos",
    "final.norm": r"ln_final\.[wb]",
    "head": r"unembed\.[Wb]_U",
}
_TABLES = (
    *({**_QKV, **_LLAMA}, {**_QKV, **_OPT}, _BERT, _VIT, {**_QKV, **_PHI}, _GPTJ, _DISTILBERT),
    *(_ALBERT, _TORCH, _TRANSFORMER_LENS),
)
"""Those without a fused weight whose order only the architecture could tell."""
_USUAL = {
    **{
        group: "|".join(dict.fromkeys(table[group] for table in _TABLES if group in table))
        for group in dict.fromkeys(group for table in _TABLES for group in table)
    },
    "head": r"(lm_head|score|classifier|cls|predictions|pooler)(\.\w+)*|embed_out|unembed\.[Wb]_U",
}
_CONTAINER = re.compile(r"((?:\w+\.)*?)(\w+)\.\d+\.")


def usual_rules(names: Sequence[str]) -> list[Rule]:
    """Rules for an unknown architecture: the names that known ones use inside and outside of their layers.

    Args:
        names: of its parameters; layers are modules with a number in their path. Where there are several
            lists of layers (an encoder and a decoder, two towers), the groups' names begin with their path.

    Returns:
        The rules; none where there are no layers.
    """
    lists = dict.fromkeys(found.groups() for name in names if (found := _CONTAINER.match(name)))
    several = len({path for path, _ in lists}) > 1
    usual = dict(_USUAL)
    if not any(".experts." in name for name in names):
        del usual["mlp.router"]  # `mlp.gate` may be half of a gated MLP
    return [
        rule
        for path, own in lists
        for rule in _rules(
            rf"{re.escape(path)}{own}\.(?P<layer>\d+)\.",
            usual,
            packing=thirds,
            side=(path.rstrip(".") or own) if several else "",
        )
    ]


def outside_rules(model: nn.Module) -> list[Rule]:
    """Rules for embeddings and norms outside the layers of an unknown architecture, by the type of the module."""
    roles = {nn.Embedding: "embedding", nn.LayerNorm: "norm", nn.RMSNorm: "norm"}
    return [
        Rule(pattern=rf"{re.escape(name)}\.\w+", name=f"{role}.{name}", role=role)
        for name, module in model.named_modules()
        if (role := roles.get(type(module))) and not _CONTAINER.match(f"{name}.")
    ]
