"""Which parameters are queries, keys, values and so on, by architecture: rules on their names.

Weights of `torch.nn.Linear` are (outputs, inputs); those of GPT-2's Conv1D are (inputs, outputs).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from hessblocks.curvature.groups.packing import Packing, interleaved, one_role, stacked


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
    layer: str, groups: Mapping[str, str], *, packing: Packing | None = None, conv1d: bool = False
) -> list[Rule]:
    """The rules of an architecture.

    Args:
        layer: how the names of a layer's parameters begin.
        groups: from group name to a pattern of its modules or parameters. Those of a layer continue
            `layer`; attention has `query`, `key` and `value`, or one `fused` weight, and `projection`.
            Those outside may stand in a base model. Without `head`, any of the usual names is one.
        packing: how heads lie in the fused weight.
        conv1d: whether weights are (inputs, outputs).

    Returns:
        Those of the layers and those outside, in the order in which they are tried.
    """
    rules = []
    for name, modules in {**groups, "head": groups.get("head", _HEAD)}.items():
        pattern = rf"({modules})(\.\w+)?"
        if name in _OUTSIDE:
            rules.append(Rule(pattern=rf"(\w+\.)?{pattern}", name=name, role=_OUTSIDE[name]))
        elif name in _INSIDE:
            title = f"layers.{{layer}}.{name}"
            rules.append(Rule(pattern=layer + pattern, name=title, role=_INSIDE[name]))
        else:
            rule = Rule(
                pattern=layer + pattern,
                name="layers.{layer}.attention.{role}",
                role="" if name == "fused" else name,
                packing=packing if name == "fused" else one_role(name),
                axis=int((name == "projection") != conv1d),
            )
            if name == "projection":  # along the inputs; the shift belongs to no head
                bias = rf"{layer}({modules})\.bias"
                rules.append(replace(rule, pattern=bias, packing=None))
            rules.append(rule)
    return rules


_INSIDE = {"mlp.in": "mlp_in", "mlp.out": "mlp_out", "norm": "norm", "gains": "gain"}
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
_LLAMA = {
    "projection": r"self_attn\.o_proj",
    "mlp.in": r"mlp\.(gate_proj|up_proj|gate_up_proj)",
    "mlp.out": r"mlp\.down_proj",
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

ARCHITECTURES: dict[str, list[Rule]] = {
    "hessblocks": _rules(_LAYERS, _HESSBLOCKS),
    "gpt2": _rules(_H, _GPT2, packing=stacked, conv1d=True),
    "gpt_neox": _rules(_LAYERS, _GPT_NEOX, packing=interleaved),
    "bloom": _rules(_H, _BLOOM_FALCON, packing=interleaved),
    "falcon": _rules(_H, _BLOOM_FALCON, packing=interleaved),
    "phi3": _rules(_LAYERS, {"fused": r"self_attn\.qkv_proj", **_LLAMA}, packing=stacked),
    **dict.fromkeys(
        ("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text"),
        _rules(_LAYERS, {**_QKV, **_LLAMA}),
    ),
    "opt": _rules(_LAYERS, {**_QKV, **_OPT}),
    "bert": _rules(_ENCODER, _BERT),
    "roberta": _rules(_ENCODER, _BERT),
    "modernbert": _rules(_LAYERS, _MODERNBERT, packing=stacked),
    "vit": _rules(_ENCODER, _VIT),
}
"""Rules by the `model_type` of a Hugging Face configuration."""
