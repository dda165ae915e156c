"""Tiny random-weight models of the Hugging Face architectures whose layout is known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers as hf
from torch import nn

from tests.curvature.cases import VOCABULARY, Case, padded_batches, stir, tokens

SPECIAL = {"pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0}
SIZES = {
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
_H_SIZES = {"vocab_size": VOCABULARY, "hidden_size": 8, "n_layer": 1, "n_head": 4, **SPECIAL}


def _falcon(**switches: Any) -> hf.FalconConfig:
    return hf.FalconConfig(
        vocab_size=VOCABULARY,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=4,
        ffn_hidden_size=6,
        **switches,
        **SPECIAL,
    )


CAUSAL: dict[str, Callable[[], Any]] = {
    "gpt2": lambda: hf.GPT2Config(
        vocab_size=VOCABULARY, n_embd=8, n_layer=1, n_head=4, n_inner=6, n_positions=8, **SPECIAL
    ),
    "gpt-neox": lambda: hf.GPTNeoXConfig(**SIZES),
    "bloom": lambda: hf.BloomConfig(**_H_SIZES),
    "falcon-multi-query": lambda: _falcon(multi_query=True, new_decoder_architecture=False),
    "falcon-multi-head": lambda: _falcon(
        multi_query=False, new_decoder_architecture=False, bias=True
    ),
    "falcon-grouped": lambda: _falcon(new_decoder_architecture=True, num_kv_heads=2),
    "phi3": lambda: hf.Phi3Config(**GROUPED),
    "llama": lambda: hf.LlamaConfig(**GROUPED),
    "mistral": lambda: hf.MistralConfig(**GROUPED),
    "qwen2": lambda: hf.Qwen2Config(**GROUPED),
    "qwen3": lambda: hf.Qwen3Config(**GEMMA),
    "gemma": lambda: hf.GemmaConfig(**GEMMA),
    "gemma2": lambda: hf.Gemma2Config(**GEMMA),
    "gemma3": lambda: hf.Gemma3TextConfig(**GEMMA),
    "opt": lambda: hf.OPTConfig(
        vocab_size=VOCABULARY,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=4,
        ffn_dim=6,
        max_position_embeddings=8,
        word_embed_proj_dim=8,
        **SPECIAL,
    ),
}
MASKED: dict[str, Callable[[], Any]] = {
    "bert": lambda: hf.BertConfig(**SIZES),
    "roberta": lambda: hf.RobertaConfig(**SIZES),
    "modernbert": lambda: hf.ModernBertConfig(**SIZES, cls_token_id=0, sep_token_id=0),
}
ARCHITECTURES = [*CAUSAL, *MASKED, "vit"]
FUSED = [
    "gpt2",
    "gpt-neox",
    "bloom",
    "falcon-multi-query",
    "falcon-multi-head",
    "falcon-grouped",
    "phi3",
    "modernbert",
]


def model_of(name: str) -> nn.Module:
    if name == "vit":
        config = hf.ViTConfig(
            hidden_size=8,
            num_hidden_layers=1,
            num_attention_heads=4,
            intermediate_size=6,
            image_size=4,
            patch_size=2,
            num_labels=3,
        )
        return stir(hf.ViTForImageClassification(config))
    if name in CAUSAL:
        return stir(hf.AutoModelForCausalLM.from_config(CAUSAL[name]()))
    return stir(hf.AutoModelForMaskedLM.from_config(MASKED[name]()))


def case_of(name: str) -> Case:
    model = model_of(name)
    if name == "vit":
        images = {"pixel_values": torch.randn(2, 3, 4, 4).double(), "labels": torch.tensor([0, 2])}
        return Case(model=model, batches=[images], loss="classification")
    if name in CAUSAL:
        return Case(model=model, batches=padded_batches())
    labels = torch.tensor([[-100, 3, 1, -100], [1, -100, -100, 5]])
    return Case(model=model, batches=[{"input_ids": tokens(2), "labels": labels}], loss="masked-lm")
