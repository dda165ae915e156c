"""Tiny random models of known Hugging Face architectures and of every preset."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from typing import Any
from unittest.mock import patch

import torch
import transformers as hf
from jaxtyping import Float
from torch import Tensor, nn

import hessblocks as hb
from hessblocks.architectures import ARCHITECTURES as TABLE
from tests.curvature.cases import VOCABULARY, Case, padded_batches, stir, tokens

SPECIAL = {"pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0}
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "intermediate_size": 6,
    "max_position_embeddings": 8,
    **SPECIAL,
}
GROUPED = {**SIZES, "num_key_value_heads": 2}
GEMMA = {**GROUPED, "head_dim": 2}
_FALCON = {**SIZES, "ffn_hidden_size": 6}
_PHI = {**SIZES, "num_attention_heads": 2}

OPTIONS: dict[str, dict[str, Any]] = {
    "gpt2": {**SIZES, "n_inner": 6},
    "gpt_neox": SIZES,
    "gpt_neox, one branch after the other": {**SIZES, "use_parallel_residual": False},
    "bloom": SIZES,
    "falcon, multi-query": {**_FALCON, "multi_query": True, "new_decoder_architecture": False},
    "falcon, multi-head": {
        **_FALCON,
        "multi_query": False,
        "new_decoder_architecture": False,
        "bias": True,
    },
    "falcon, grouped": {**_FALCON, "new_decoder_architecture": True, "num_kv_heads": 2},
    "phi3": GROUPED,
    "llama": GROUPED,
    "mistral": {**GROUPED, "sliding_window": 2},
    "qwen2": GROUPED,
    **dict.fromkeys(("qwen3", "gemma", "gemma2", "gemma3_text"), GEMMA),
    "phi": _PHI,
    "phi, norms of queries and keys": {**_PHI, "qk_layernorm": True},
    "opt": {**SIZES, "ffn_dim": 6, "word_embed_proj_dim": 8},
    "bert": SIZES,
    "roberta": SIZES,
    "modernbert": {
        **SIZES,
        "cls_token_id": 0,
        "sep_token_id": 0,
        "num_hidden_layers": 2,
        "local_attention": 4,
    },
    "vit": {**SIZES, "image_size": 4, "patch_size": 2, "num_labels": 3},
}
"""Fields of the configuration, for each architecture and what is particular about the model."""
MASKED = ("bert", "roberta", "modernbert")
_HEADS: dict[str, Any] = {
    **dict.fromkeys(MASKED, hf.AutoModelForMaskedLM),
    "vit": hf.AutoModelForImageClassification,
}
FUSED = [
    *("gpt2", "gpt_neox", "bloom", "phi3", "modernbert"),
    *(name for name in OPTIONS if name.startswith("falcon")),
]


def _made(name: str, **fields: Any) -> nn.Module:
    kind = name.partition(",")[0]
    config = hf.AutoConfig.for_model(kind, **{**OPTIONS[name], **fields})
    model: nn.Module = _HEADS.get(kind, hf.AutoModelForCausalLM).from_config(config)
    return model


def model_of(name: str) -> nn.Module:
    return stir(_made(name))


def case_of(name: str) -> Case:
    model = model_of(name)
    if name == "vit":
        images = {"pixel_values": torch.randn(2, 3, 4, 4).double(), "labels": torch.tensor([0, 2])}
        return Case(model=model, batches=[images], loss="classification")
    if name not in MASKED:
        return Case(model=model, batches=padded_batches())
    labels = torch.tensor([[-100, 3, 1, -100], [1, -100, -100, 5]])
    return Case(model=model, batches=[{"input_ids": tokens(2), "labels": labels}], loss="masked-lm")


FAMILY_MODELS: dict[str, Callable[[], nn.Module]] = {
    name: partial(_made, name, tie_word_embeddings=False, attn_implementation="sdpa")
    for name in OPTIONS
    if TABLE[name.partition(",")[0]].behind
}
"""Of each architecture whose last layer has a closed form, the function that makes a model."""
_SLOTS: dict[str, dict[str, Any]] = {
    "norms of branches": {"attention_branch.norm": "rms", "mlp_branch.norm": "layer"},
    "alibi": {"position": "alibi"},
    "derf": {"norm": "derf", "final_norm": "derf"},
    "skip to the embedding": {"embedding_skip": "branch"},
}
"""Slots of pre-LN variants that have a closed form and are in no preset."""
_built = partial(
    hb.build,
    depth=2,
    width=4,
    heads=2,
    mlp_width=6,
    vocab_size=VOCABULARY,
    context=6,
    tie_word_embeddings=False,
)
MODELS: dict[str, Callable[[], nn.Module]] = {
    **{f"hessblocks, {name}": partial(_built, name) for name in hb.PRESETS},
    **{
        f"hessblocks, {name}": partial(_built, "pre-ln", slots=slots)
        for name, slots in _SLOTS.items()
    },
    **FAMILY_MODELS,
}
"""The same, with every preset and the variants of slots."""


def batch_of(model: nn.Module) -> tuple[dict[str, Any], str]:
    """Make inputs, labels and loss for a tiny model; inputs of tokens have padding.

    Returns:
        The batch and causal-lm, masked-lm or classification.
    """
    kind = type(model).__name__
    if "ImageClassification" in kind:
        images = torch.randn(2, 3, 4, 4, dtype=torch.float64)
        return {"pixel_values": images, "labels": torch.tensor([0, 2])}, "classification"
    ids = torch.randint(1, VOCABULARY, (2, 4))
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0]])
    labels = ids.masked_fill(mask == 0, -100)
    labels[:, 0] = -100
    batch = {"input_ids": ids, "attention_mask": mask, "labels": labels}
    return batch, "masked-lm" if "MaskedLM" in kind else "causal-lm"


class _ExactNorm(nn.Module):
    """RMSNorm in the dtype of its input."""

    def __init__(self, norm: Any) -> None:
        super().__init__()
        self.weight = norm.weight
        self.eps = getattr(norm, "variance_epsilon", None) or norm.eps
        self.shift = 1.0 if "Gemma" in type(norm).__name__ else 0.0

    def forward(self, x: Float[Tensor, "*tokens width"]) -> Float[Tensor, "*tokens width"]:
        root = (x.square().mean(-1, keepdim=True) + self.eps).rsqrt()
        normed: Tensor = x * root * (self.weight + self.shift)
        return normed


@contextmanager
def without_casts(model: nn.Module) -> Iterator[nn.Module]:
    """Remove transformers' casts to float32 in norms and rotary embeddings.

    Args:
        model: model to change: its norms permanently, its rotary embedding within the context.

    Yields:
        The model.
    """
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child).__name__.endswith("RMSNorm") and not isinstance(child, nn.RMSNorm):
                setattr(module, name, _ExactNorm(child))
    llama = import_module("transformers.models.llama.modeling_llama")
    modernbert = import_module("transformers.models.modernbert.modeling_modernbert")
    with patch.object(modernbert, "apply_rotary_pos_emb", llama.apply_rotary_pos_emb):
        yield model
