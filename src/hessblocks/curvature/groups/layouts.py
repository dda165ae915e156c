"""Which parameters are queries, keys, values and so on, by architecture: rules on their names.

Weights of `torch.nn.Linear` are (outputs, inputs); those of GPT-2's Conv1D are (inputs, outputs).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

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


def _outside(groups: Mapping[str, tuple[str, str]]) -> list[Rule]:
    """Rules outside the layers, from group name to (role, pattern)."""
    return [Rule(pattern=pattern, name=name, role=role) for name, (role, pattern) in groups.items()]


def _inside(
    layer: str, *, mlp_in: str, mlp_out: str, norm: str, extra: tuple[Rule, ...] = ()
) -> list[Rule]:
    """Rules for the parts of a layer besides attention; each pattern continues `layer`."""
    patterns = {
        "mlp.in": ("mlp_in", mlp_in),
        "mlp.out": ("mlp_out", mlp_out),
        "norm": ("norm", norm),
    }
    return [
        *extra,
        *(
            Rule(pattern=layer + pattern, name=f"layers.{{layer}}.{name}", role=role)
            for name, (role, pattern) in patterns.items()
        ),
    ]


def _separate(layer: str, query: str, key: str, value: str, projection: str) -> list[Rule]:
    """Rules for attention with a module for each role; each pattern continues `layer`."""
    modules = {"query": query, "key": key, "value": value}
    rules = [
        Rule(
            pattern=f"{layer}{module}{_ANY}",
            name="layers.{layer}.attention.{role}",
            role=role,
            packing=one_role(role),
        )
        for role, module in modules.items()
    ]
    return [*rules, *_projection(layer, projection, axis=1)]


def _fused(
    layer: str, module: str, projection: str, packing: Packing, *, conv1d: bool = False
) -> list[Rule]:
    """Rules for attention with one module for queries, keys and values."""
    rule = Rule(
        pattern=f"{layer}{module}{_ANY}",
        name="layers.{layer}.attention.{role}",
        role="",
        packing=packing,
        axis=1 if conv1d else 0,
    )
    return [rule, *_projection(layer, projection, axis=0 if conv1d else 1)]


def _projection(layer: str, module: str, *, axis: int) -> list[Rule]:
    """Heads lie along the inputs of the weight; the shift belongs to no head."""
    name = "layers.{layer}.attention.projection"
    return [
        Rule(pattern=rf"{layer}{module}\.bias", name=name, role="projection"),
        Rule(
            pattern=f"{layer}{module}{_ANY}",
            name=name,
            role="projection",
            packing=one_role("projection"),
            axis=axis,
        ),
    ]


_ANY = r"\.\w+"
_LAYERS = r"(?:\w+\.)*layers\.(?P<layer>\d+)\."
_H = r"(?:transformer\.)?h\.(?P<layer>\d+)\."
_ENCODER = r"(?:\w+\.)*(?:layer|layers)\.(?P<layer>\d+)\."
_HEAD = {"head": ("head", r"(lm_head|score|classifier|cls|head|decoder|(\w+\.)?pooler)\..+")}

HESSBLOCKS = [
    *_separate(
        _LAYERS,
        query=r"attention\.query",
        key=r"attention\.key",
        value=r"attention\.value",
        projection=r"attention\.projection",
    ),
    *_inside(
        _LAYERS,
        mlp_in=r"mlp\.(input|gate)\.\w+",
        mlp_out=r"mlp\.output\.\w+",
        norm=r"((attention|mlp)_norm|attention\.(query|key)_norm)\.\w+",
        extra=(
            Rule(
                pattern=_LAYERS + r"(attention\.gains\.\w+|(attention|mlp)_branch\.(gain|skip))",
                name="layers.{layer}.gains",
                role="gain",
            ),
        ),
    ),
    *_outside(
        {
            "embedding.token": ("embedding", r"(\w+\.)?token_embedding\.\w+"),
            "embedding.position": ("embedding", r"(\w+\.)?position_embedding\.\w+"),
            "final.norm": ("norm", r"(\w+\.)?final_norm\.\w+"),
            **_HEAD,
        }
    ),
]

GPT2 = [
    *_fused(_H, r"attn\.c_attn", r"attn\.c_proj", stacked, conv1d=True),
    *_inside(_H, mlp_in=r"mlp\.c_fc\.\w+", mlp_out=r"mlp\.c_proj\.\w+", norm=r"ln_\d\.\w+"),
    *_outside(
        {
            "embedding.token": ("embedding", r"(transformer\.)?wte\.weight"),
            "embedding.position": ("embedding", r"(transformer\.)?wpe\.weight"),
            "final.norm": ("norm", r"(transformer\.)?ln_f\.\w+"),
            **_HEAD,
        }
    ),
]

_WIDEN, _NARROW = r"mlp\.dense_h_to_4h\.\w+", r"mlp\.dense_4h_to_h\.\w+"
GPT_NEOX = [
    *_fused(_LAYERS, r"attention\.query_key_value", r"attention\.dense", interleaved),
    *_inside(
        _LAYERS, mlp_in=_WIDEN, mlp_out=_NARROW, norm=r"(input|post_attention)_layernorm\.\w+"
    ),
    *_outside(
        {
            "embedding.token": ("embedding", r"(gpt_neox\.)?embed_in\.weight"),
            "final.norm": ("norm", r"(gpt_neox\.)?final_layer_norm\.\w+"),
            "head": ("head", r"(embed_out|lm_head|score|classifier)\.\w+"),
        }
    ),
]

BLOOM_FALCON = [
    *_fused(_H, r"self_attention\.query_key_value", r"self_attention\.dense", interleaved),
    *_inside(
        _H,
        mlp_in=_WIDEN,
        mlp_out=_NARROW,
        norm=r"((input|post_attention)_layernorm|ln_attn|ln_mlp)\.\w+",
    ),
    *_outside(
        {
            "embedding.token": ("embedding", r"(transformer\.)?word_embeddings\.weight"),
            "embedding.norm": ("norm", r"(transformer\.)?word_embeddings_layernorm\.\w+"),
            "final.norm": ("norm", r"(transformer\.)?ln_f\.\w+"),
            **_HEAD,
        }
    ),
]

_LLAMA_LIKE = [
    *_inside(
        _LAYERS,
        mlp_in=r"mlp\.(gate_proj|up_proj|gate_up_proj)\.\w+",
        mlp_out=r"mlp\.down_proj\.\w+",
        norm=r"(\w+_layernorm|self_attn\.[qk]_norm)\.\w+",
    ),
    *_outside(
        {
            "embedding.token": ("embedding", r"(model\.)?embed_tokens\.weight"),
            "final.norm": ("norm", r"(model\.)?norm\.\w+"),
            **_HEAD,
        }
    ),
]
_QKV = {role: rf"self_attn\.{role[0]}_proj" for role in ("query", "key", "value")}
LLAMA = [*_separate(_LAYERS, **_QKV, projection=r"self_attn\.o_proj"), *_LLAMA_LIKE]
PHI3 = [*_fused(_LAYERS, r"self_attn\.qkv_proj", r"self_attn\.o_proj", stacked), *_LLAMA_LIKE]

OPT = [
    *_separate(_LAYERS, **_QKV, projection=r"self_attn\.out_proj"),
    *_inside(
        _LAYERS,
        mlp_in=r"fc1\.\w+",
        mlp_out=r"fc2\.\w+",
        norm=r"(self_attn|final)_layer_norm\.\w+",
    ),
    *_outside(
        {
            "embedding.token": ("embedding", r"(\w+\.)*(embed_tokens|project_in)\.weight"),
            "embedding.position": ("embedding", r"(\w+\.)*embed_positions\.weight"),
            "final.norm": ("norm", r"(\w+\.)*final_layer_norm\.\w+"),
            "head": ("head", r"(lm_head|score|(\w+\.)*project_out)\.\w+"),
        }
    ),
]

_EMBEDDINGS = r"(\w+\.)?embeddings\."
BERT = [
    *_separate(
        _ENCODER,
        query=r"attention\.self\.query",
        key=r"attention\.self\.key",
        value=r"attention\.self\.value",
        projection=r"attention\.output\.dense",
    ),
    *_inside(
        _ENCODER,
        mlp_in=r"intermediate\.dense\.\w+",
        mlp_out=r"output\.dense\.\w+",
        norm=r"(attention\.)?output\.LayerNorm\.\w+",
    ),
    *_outside(
        {
            "embedding.token": ("embedding", _EMBEDDINGS + r"word_embeddings\.weight"),
            "embedding.position": ("embedding", _EMBEDDINGS + r"position_embeddings\.weight"),
            "embedding.segment": ("embedding", _EMBEDDINGS + r"token_type_embeddings\.weight"),
            "embedding.norm": ("norm", _EMBEDDINGS + r"LayerNorm\.\w+"),
            **_HEAD,
        }
    ),
]

MODERNBERT = [
    *_fused(_LAYERS, r"attn\.Wqkv", r"attn\.Wo", stacked),
    *_inside(
        _LAYERS, mlp_in=r"mlp\.Wi\.\w+", mlp_out=r"mlp\.Wo\.\w+", norm=r"(attn|mlp)_norm\.\w+"
    ),
    *_outside(
        {
            "embedding.token": ("embedding", _EMBEDDINGS + r"tok_embeddings\.weight"),
            "embedding.norm": ("norm", _EMBEDDINGS + r"norm\.\w+"),
            "final.norm": ("norm", r"(model\.)?final_norm\.\w+"),
            **_HEAD,
        }
    ),
]

_VIT_ATTENTION = r"attention\.(attention\.)?"
VIT = [
    *_separate(
        _ENCODER,
        query=_VIT_ATTENTION + r"(q_proj|query)",
        key=_VIT_ATTENTION + r"(k_proj|key)",
        value=_VIT_ATTENTION + r"(v_proj|value)",
        projection=r"attention\.(o_proj|output\.dense)",
    ),
    *_inside(
        _ENCODER,
        mlp_in=r"(mlp\.fc1|intermediate\.dense)\.\w+",
        mlp_out=r"(mlp\.fc2|output\.dense)\.\w+",
        norm=r"layernorm_(before|after)\.\w+",
    ),
    *_outside(
        {
            "embedding.patch": (
                "embedding",
                _EMBEDDINGS + r"(patch_embeddings\.projection\.\w+|cls_token|mask_token)",
            ),
            "embedding.position": ("embedding", _EMBEDDINGS + r"position_embeddings"),
            "final.norm": ("norm", r"(vit\.)?layernorm\.\w+"),
            **_HEAD,
        }
    ),
]

ARCHITECTURES: dict[str, list[Rule]] = {
    "hessblocks": HESSBLOCKS,
    "gpt2": GPT2,
    "gpt_neox": GPT_NEOX,
    "bloom": BLOOM_FALCON,
    "falcon": BLOOM_FALCON,
    "phi3": PHI3,
    **dict.fromkeys(
        ("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text"), LLAMA
    ),
    "opt": OPT,
    "bert": BERT,
    "roberta": BERT,
    "modernbert": MODERNBERT,
    "vit": VIT,
}
"""Rules by the `model_type` of a Hugging Face configuration."""
