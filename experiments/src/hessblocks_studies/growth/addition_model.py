"""Models of the Hessian paper: random weights, embeddings of size σ, and the addition task.

All models are at initialisation. Weights are N(0, (0.8/√d)²) with d the width; embeddings and
positions are N(0, σ²). Each model is drawn from a separate seed.

Source: Ormaniec, Dangel & Singh (2025), section 4, and the authors' notebook.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from transformers import PreTrainedModel

from hessblocks import blocks
from hessblocks.conventions import IGNORED
from hessblocks.curvature import LossFunction
from hessblocks.errors import check_name
from hessblocks.models import build
from hessblocks_studies.data import SYMBOLS

TOKENS = 18
"""Length of a sum of two numbers with 5 digits."""
GAIN = 0.8
"""Standard deviation of a weight times √width."""


BLOCKS: dict[str, dict[str, Any]] = {
    "softmax": {},
    "softmax-mlp-biases": {
        "mlp": blocks.MLP(input=blocks.Dense(bias=True), output=blocks.Dense(bias=True))
    },
    "softmax-pre-ln": {"norm": blocks.LayerNorm(), "final_norm": blocks.LayerNorm()},
    "linear": {"attention": blocks.Attention(scores="linear")},
    "linear-alone": {
        "attention": blocks.Attention(scores="linear"),
        "attention_branch": blocks.Branch(skip=0.0),
        "mlp": blocks.MLP(output=blocks.Dense(init="zeros")),
        "mlp_width": 1,
    },
    "one-matrix": {"attention": blocks.Attention(query_key="one-matrix")},
    "one-matrix-linear": {"attention": blocks.Attention(query_key="one-matrix", scores="linear")},
}
"""Name → changes of the default block: one softmax head as wide as the block, an MLP with ReLU and
4 widths, skips, no norm. `linear-alone` is only linear attention, without a skip; its MLP's output
stays zero."""


def weight_size(width: int) -> float:
    """Compute the standard deviation of a weight, 0.8/√width."""
    return GAIN / math.sqrt(width)


def addition_model(
    block: str | blocks.BlockConfig, *, layers: int, width: int, sigma: float, seed: int
) -> PreTrainedModel:
    """Build a causal language model of sums in float64, with an untied head, drawn from `seed`.

    Args:
        block: a name in `BLOCKS`, or a block of this width.
        layers: number of layers.
        width: width of the model.
        sigma: standard deviation of embeddings and positions.
        seed: seed of all weights.

    Returns:
        The model, in evaluation mode.

    Raises:
        ArgumentError: unknown block.
    """
    if isinstance(block, str):
        check_name("block", block, BLOCKS)
        plain = {
            "heads": 1,
            "norm": blocks.NoNorm(),
            "final_norm": blocks.NoNorm(),
            "position": blocks.LearnedPosition(),
        }
        block = blocks.preset("pre-ln", width=width, **{**plain, **BLOCKS[block]})
    model: PreTrainedModel = build(
        block,
        depth=layers,
        vocab_size=len(SYMBOLS),
        context=TOKENS,
        tie_word_embeddings=False,
    ).double()
    draw(model, width=width, sigma=sigma, seed=seed)
    model.set_attn_implementation("eager")  # fused kernels lack second derivatives
    model.eval()
    return model


def draw(model: nn.Module, *, width: int, sigma: float, seed: int) -> None:
    """Draw all matrices of `model`: embeddings from N(0, σ²), others from N(0, (0.8/√width)²).

    Matrices that are zero stay zero.
    """
    generator = torch.Generator().manual_seed(seed)
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=sigma, generator=generator)
        elif isinstance(module, nn.Linear) and module.weight.any():
            nn.init.normal_(module.weight, std=weight_size(width), generator=generator)


def one_hot_squares(outputs: Any, batch: Any) -> Float[Tensor, " entries"]:
    """Compute (logit − one-hot)² of every class at every answer digit, (digits · classes,)."""
    logits = outputs.logits[:, :-1]
    labels = batch["labels"][:, 1:]
    valid = labels != IGNORED
    target = F.one_hot(labels[valid], logits.shape[-1])
    squares: Tensor = (logits[valid] - target).square()
    return squares.flatten()


def of_current_tokens(
    batch: Mapping[str, Int[Tensor, "sums tokens"]],
) -> dict[str, Int[Tensor, "sums tokens"]]:
    """Replace the next token by the current token as the target of a batch.

    The module of the authors' notebook does this, since it cuts the targets as it cuts the outputs.

    Args:
        batch: `input_ids` and `labels`.

    Returns:
        The batch with labels shifted by one position; positions without a label remain without.
    """
    tokens, labels = batch["input_ids"], batch["labels"]
    before = tokens.roll(1, dims=1)
    return {"input_ids": tokens, "labels": torch.where(labels == IGNORED, labels, before)}


LOSSES: dict[str, str | LossFunction] = {"cross-entropy": "causal-lm", "squares": one_hot_squares}
"""Name → loss. Both are means over the answer digits, the squared loss also over classes."""
