"""Tables of parameter names by architecture: queries, keys, values and so on.

Weights of `torch.nn.Linear` are (outputs, inputs); those of GPT-2's Conv1D are (inputs, outputs).
"""

from __future__ import annotations

from collections.abc import Mapping

from hessblocks.curvature.groups.name_rules import HEAD, Rule, rules_of
from hessblocks.curvature.groups.packing import interleaved, stacked

_LAYERS = r"(?:\w+\.)*layers\.(?P<layer>\d+)\."
_H = r"(?:transformer\.)?h\.(?P<layer>\d+)\."
_ENCODER = r"(?:\w+\.)*(?:layer|layers)\.(?P<layer>\d+)\."
READ = ("query", "key", "value")

_HESSBLOCKS = {
    **{role: rf"attention\.{role}" for role in (*READ, "projection", "gate")},
    "gains": r"attention\.gains|(attention|mlp)_branch",
    "mlp.in": r"mlp\.(input|gate)",
    "mlp.out": r"mlp\.output",
    "norm": r"(attention|mlp)_norm|attention\.(query|key)_norm",
    "embedding.token": "token_embedding",
    "embedding.position": "position_embedding",
    "final.norm": "final_norm",
}

GPT2 = {
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

QKV = {role: rf"self_attn\.{role[0]}_proj" for role in READ}
_EXPERTS = r"mlp\.((experts|shared_expert)\.)?"
LLAMA = {
    "projection": r"self_attn\.o_proj",
    "mlp.in": rf"{_EXPERTS}(gate_proj|up_proj|gate_up_proj(_bias)?)",
    "mlp.out": rf"{_EXPERTS}down_proj(_bias)?",
    "mlp.router": r"mlp\.(gate|router|shared_expert_gate)",
    "gains": r"self_attn\.sinks",
    "norm": r"\w+_layernorm|self_attn\.[qk]_norm",
    "embedding.token": "embed_tokens",
    "final.norm": "norm",
}

OPT = {
    "projection": r"self_attn\.out_proj",
    "mlp.in": "fc1",
    "mlp.out": "fc2",
    "norm": "(self_attn|final)_layer_norm",
    "embedding.token": r"(decoder\.)?(embed_tokens|project_in)",
    "embedding.position": r"(decoder\.)?embed_positions",
    "final.norm": r"(decoder\.)?final_layer_norm",
    "head": r"lm_head|score|(decoder\.)?project_out",
}

BERT = {
    **{role: rf"attention\.self\.{role}" for role in READ},
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

VIT = {
    **{role: rf"attention\.(attention\.)?({role[0]}_proj|{role})" for role in READ},
    "projection": r"attention\.(o_proj|output\.dense)",
    "mlp.in": r"mlp\.fc1|intermediate\.dense",
    "mlp.out": r"mlp\.fc2|output\.dense",
    "norm": "layernorm_(before|after)",
    "embedding.patch": r"embeddings\.(patch_embeddings\.projection|cls_token|mask_token)",
    "embedding.position": r"embeddings\.position_embeddings",
    "final.norm": "layernorm",
}

PHI = {
    "projection": r"self_attn\.dense",
    "mlp.in": r"mlp\.fc1",
    "mlp.out": r"mlp\.fc2",
    "norm": r"input_layernorm|self_attn\.[qk]_layernorm",
    "embedding.token": "embed_tokens",
    "final.norm": "final_layernorm",
}

GPTJ = {
    **{role: rf"attn\.{role[0]}_proj" for role in READ},
    "projection": r"attn\.out_proj",
    "mlp.in": r"mlp\.fc_in",
    "mlp.out": r"mlp\.fc_out",
    "norm": r"ln_\d",
    "embedding.token": "wte",
    "final.norm": "ln_f",
}

DISTILBERT = {
    **{role: rf"attention\.{role[0]}_lin" for role in READ},
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
    **BERT,
    **{role: rf"attention\.self\.(pos_)?{role}_proj" for role in READ},
    "embedding.position": r"embeddings\.position_embeddings|encoder\.rel_embeddings",
    "final.norm": r"encoder\.LayerNorm",
}

ALBERT = {
    **{role: rf"attention\.{role}" for role in READ},
    "projection": r"attention\.dense",
    "mlp.in": "ffn",
    "mlp.out": "ffn_output",
    "norm": r"full_layer_layer_norm|attention\.LayerNorm",
    **{name: BERT[name] for name in BERT if name.startswith("embedding.")},
    "embedding.token": r"embeddings\.word_embeddings|encoder\.embedding_hidden_mapping_in",
    "head": HEAD + r"|predictions(\.\w+)?",
}
_SHARED_LAYERS = r"(?:\w+\.)*albert_layer_groups\.(?P<layer>\d+)\.albert_layers\.\d+\."


def _two_sides(
    layer: str, own: Mapping[str, str], cross: Mapping[str, str], outside: Mapping[str, str]
) -> list[Rule]:
    """The rules of an encoder-decoder; `layer` names the side as {side}."""
    own = {**own, "head": r"lm_head|qa_outputs|classification_head\.\w+"}
    decoder = {**own, **{f"cross.{role}": pattern for role, pattern in cross.items()}}
    return [
        *rules_of(layer.replace("{side}", "encoder"), own, side="encoder"),
        *rules_of(layer.replace("{side}", "decoder"), {**decoder, **outside}, side="decoder"),
    ]


def _bart_attention(module: str) -> dict[str, str]:
    names = {role: rf"{module}\.{role[0]}_proj" for role in READ}
    return {**names, "projection": rf"{module}\.out_proj"}


def _t5_attention(module: str) -> dict[str, str]:
    names = {role: rf"layer\.\d\.{module}\.{role[0]}" for role in READ}
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
    "hessblocks": rules_of(  # parts of one's own name their parameters as they like
        _LAYERS, {name: rf"({modules})(\.\w+)?" for name, modules in _HESSBLOCKS.items()}
    ),
    "gpt2": rules_of(_H, GPT2, packing=stacked, conv1d=True),
    "gpt_neox": rules_of(_LAYERS, _GPT_NEOX, packing=interleaved),
    "bloom": rules_of(_H, _BLOOM_FALCON, packing=interleaved),
    "falcon": rules_of(_H, _BLOOM_FALCON, packing=interleaved),
    "phi3": rules_of(_LAYERS, {"fused": r"self_attn\.qkv_proj", **LLAMA}, packing=stacked),
    **dict.fromkeys(
        (
            *("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "olmo2"),
            *("mixtral", "qwen2_moe", "qwen3_moe", "gpt_oss"),
        ),
        rules_of(_LAYERS, {**QKV, **LLAMA}),
    ),
    "phi": rules_of(_LAYERS, {**QKV, **PHI}),
    "gptj": rules_of(_H, GPTJ),
    "opt": rules_of(_LAYERS, {**QKV, **OPT}),
    "bart": _BART,
    "t5": _T5,
    "distilbert": rules_of(_ENCODER, DISTILBERT),
    **dict.fromkeys(("deberta", "deberta-v2"), rules_of(_ENCODER, _DEBERTA)),
    "albert": rules_of(_SHARED_LAYERS, ALBERT),
    "bert": rules_of(_ENCODER, BERT),
    "roberta": rules_of(_ENCODER, BERT),
    "modernbert": rules_of(_LAYERS, _MODERNBERT, packing=stacked),
    "vit": rules_of(_ENCODER, VIT),
}
"""Rules by the `model_type` of a Hugging Face configuration."""
